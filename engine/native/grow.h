// A level of half-grown trees in one pass, as GrowingTrees.add_level does it with torch's operations:
// engine/proposers has what it means. `grow.py` binds it and says what the fields of `Level` are.
//
// A row of logits is worked on by one thread, and a tree by one, so numbers depend on no other tree.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "../../models/native/vectors.h"

namespace grow {

constexpr int64_t kWorthThreads = 1 << 16;  // numbers: fewer are done sooner than a second thread may wake
constexpr double kLeast = -1e300;           // a score above that of what does not exist

struct Level {
  // Read only. G trees of S slots, w nodes of each, V logits, K children, C known children of a node.
  const float* logits;         // [G * w, V], rows `stride` numbers apart
  const int64_t* vocab_ids;    // [V], or null
  const double* temperature;   // [G]
  const double* uniforms;      // [G, all drafted slots], rows `uniform_stride` numbers apart, from this level's on
  const int64_t* top_k;        // [G], null with the other two: no truncation
  const double* top_p;         // [G]
  const double* min_p;         // [G]
  const int64_t* frontier;     // [G, w]
  const int64_t* known;        // [G, S, C], -1 behind the last
  const double* log_chances;   // [G, S]
  const int64_t* roots;        // [G]
  const int64_t* kv_starts;    // [G]
  // Read and written: the trees so far.
  int64_t* tokens;   // [G, S]
  int64_t* parents;  // [G, S]
  bool* visible;     // [G, S, S]
  double* scores;    // [G, S]
  // Written: the children of all nodes, then the next w' nodes.
  int64_t* child_tokens;  // [G * w, C + K]
  int64_t* num_head;      // [G * w]
  int64_t* num_tail;      // [G * w]
  int64_t* tail_ids;      // [G * w, M]
  double* tail_probs;     // [G * w, M]
  int64_t* tail_index;    // [G * w, C + K]
  int64_t* children;      // [G * w, C + K]
  int64_t* next;          // [G, w']
  int64_t* inputs;        // [3, G * w']: their tokens, positions and rows
  bool* masks;            // [G, w', S]: what they see
  // Numbers.
  int64_t trees, width, slots, size, stride, uniform_stride;
  int64_t head, tail;      // of the K children, how many are chosen and drawn at least and at most
  int64_t known_width;     // C
  int64_t first, nodes;    // the level's slots
  int64_t law;             // M
  int64_t ranked, spare;   // tokens to rank: those that shares are of, and further ones
  int64_t next_width, depth;
  int64_t adaptive, shared, distinct, shares_nodes;

  int64_t most() const { return head + tail; }
  int64_t row_slots() const { return known_width + most(); }
  const int64_t* known_of(int64_t row) const {
    const int64_t tree = row / width;
    return known + (tree * slots + frontier[row]) * known_width;
  }
};

// The best tokens of a row, from the most likely down; of equal ones the first.
struct Ranked {
  std::vector<uint64_t> keys;
  std::vector<int64_t> ids;               // the target's
  std::vector<double> weights, law;  // the draft's law times a factor, before and after truncation
  std::vector<uint8_t> usable;
  double total;  // of the weights that shares are of
  double log_law(int64_t i) const { return std::log(weights[i] / total); }
  int64_t count() const { return ids.size(); }
};

// Larger floats have smaller keys; equal ones are in the order of their places.
inline uint64_t key_of(float x, int64_t place) {
  x += 0.0f;  // the two zeros are equal
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  bits = bits >> 31 ? bits : ~bits & 0x7fffffffu;
  return (uint64_t)bits << 32 | (uint64_t)place;
}

// A number that at least `count` of the row reach, and not many more; all of them are seen to be numbers.
inline float bound_of(const float* row, int64_t size, int64_t count, bool* are_numbers) {
  const int64_t vectors = size / kLanes;
  const int64_t group = std::min<int64_t>(16, std::max<int64_t>(1, size / (4 * count)));
  const int64_t groups = vectors / group;
  std::vector<float> most(std::max<int64_t>(groups, 0) * kLanes);
  Ints odd{};
  for (int64_t g = 0; g < groups; ++g) {
    Floats top = load(row + g * group * kLanes);
    odd |= top != top;
    for (int64_t i = 1; i < group; ++i) {
      Floats x = load(row + (g * group + i) * kLanes);
      odd |= x != x;
      top = larger(x, top);
    }
    store(most.data() + g * kLanes, top);
  }
  int32_t any = 0;
  for (int64_t k = 0; k < kLanes; ++k) any |= odd[k];
  for (int64_t i = groups * group * kLanes; i < size; ++i) any |= row[i] != row[i];
  *are_numbers = any == 0;
  if (any || (int64_t)most.size() <= count) return -INFINITY;
  std::nth_element(most.begin(), most.begin() + (count - 1), most.end(), [](float a, float b) { return a > b; });
  return most[count - 1];
}

inline void find_best(const float* row, int64_t size, int64_t count, Ranked& best, bool* are_numbers) {
  const float bound = bound_of(row, size, count, are_numbers);
  best.keys.clear();
  if (!*are_numbers) {
    for (int64_t i = 0; i < count; ++i) best.keys.push_back(i);
    return;
  }
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    Ints reach = load(row + i) >= bound;
    int32_t any = 0;
    for (int64_t k = 0; k < kLanes; ++k) any |= reach[k];
    for (int64_t k = 0; any && k < kLanes; ++k)
      if (reach[k]) best.keys.push_back(key_of(row[i + k], i + k));
  }
  for (; i < size; ++i)
    if (row[i] >= bound) best.keys.push_back(key_of(row[i], i));
  std::nth_element(best.keys.begin(), best.keys.begin() + (count - 1), best.keys.end());
  best.keys.resize(count);
  std::sort(best.keys.begin(), best.keys.end());
}

// What the request's own truncation leaves of the weights, as children.py has it.
inline void truncate(const Level& of, int64_t tree, int64_t shared_by, const std::vector<double>& weights,
                     std::vector<double>& law) {
  const int64_t count = weights.size();
  law = weights;
  for (int64_t i = 0; i < count; ++i)
    if (of.top_k[tree] > 0 && i >= of.top_k[tree]) law[i] = 0;
  const double total = std::accumulate(law.begin(), law.begin() + std::min(count, shared_by), 0.0);
  double before = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double weight = law[i];
    const double upto = before + weight;
    if (of.top_p[tree] < 1 && !(upto - weight < of.top_p[tree] * total)) law[i] = 0;
    if (weights[i] < of.min_p[tree]) law[i] = 0;
    before = upto;
  }
}

inline void rank(const Level& of, int64_t row, Ranked& best) {
  const int64_t tree = row / of.width, count = std::min(of.size, of.ranked + of.spare);
  const float* logits = of.logits + row * of.stride;
  bool is_law = false;
  find_best(logits, of.size, count, best, &is_law);
  const double top = logits[best.keys[0] & 0xffffffffu];
  is_law = is_law && std::isfinite(top);
  const double temperature = of.temperature[tree] <= 0 ? 1.0 : of.temperature[tree];
  best.ids.resize(count), best.weights.resize(count), best.usable.resize(count);
  double total = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t place = best.keys[i] & 0xffffffffu;
    const double logit = logits[place];
    best.ids[i] = of.vocab_ids ? of.vocab_ids[place] : place;
    best.usable[i] = is_law && logit > -INFINITY;
    best.weights[i] = best.usable[i] ? std::exp((logit - top) / temperature) : 0;
    if (i < of.ranked) total += best.weights[i];
  }
  best.total = std::max(total, std::numeric_limits<double>::min());  // 0 where nothing is usable
  if (of.top_k) truncate(of, tree, of.ranked, best.weights, best.law);
  else best.law = best.weights;
}

// The others first, in their order; what is known may not be proposed.
inline void put_last(const int64_t* known, int64_t count, Ranked& best) {
  std::vector<int64_t> order, last;
  for (int64_t i = 0; i < best.count(); ++i)
    (std::find(known, known + count, best.ids[i]) == known + count ? order : last).push_back(i);
  if (last.empty()) return;
  const int64_t kept = order.size();
  order.insert(order.end(), last.begin(), last.end());
  const Ranked old = best;
  for (int64_t i = 0; i < best.count(); ++i) {
    const bool is_kept = i < kept;
    best.ids[i] = old.ids[order[i]];
    best.weights[i] = is_kept ? old.weights[order[i]] : 0;
    best.law[i] = is_kept ? old.law[order[i]] : 0;
    best.usable[i] = is_kept && old.usable[order[i]];
  }
}

// How many of a node's children are chosen: head_policy.py.
inline int64_t num_chosen(const double* weights, int64_t count, int64_t children) {
  const int64_t places = std::min(children - 1, count);
  std::vector<double> left(count + 1, 0);
  for (int64_t i = count; i-- > 0;) left[i] = left[i + 1] + weights[i];
  for (int64_t i = 0; i < places; ++i) {
    const double share = left[i] > 0 ? weights[i] / left[i] : 1;
    if (!(1 - std::pow(1 - share, (double)(children - i)) >= 0.5)) return i;
  }
  return places;
}

// The place that a uniform falls on; never one of probability 0.
inline int64_t draw(const std::vector<double>& probs, double uniform) {
  double total = 0;
  for (double prob : probs) total += prob;
  const double aim = uniform * total;
  double running = 0;
  int64_t last = 0;
  for (size_t i = 0; i < probs.size(); ++i) {
    if (!(probs[i] > 0)) continue;
    last = i;
    running += probs[i];
    if (running > aim) break;
  }
  return last;
}

// The children of one node, behind the known ones; `log_probs` [K] and `known_log_probs` [C].
inline void propose(const Level& of, int64_t row, Ranked& best, double* log_probs, double* known_log_probs) {
  rank(of, row, best);
  const int64_t most = of.most(), tree = row / of.width, size = of.row_slots();
  std::vector<int64_t> known;
  for (int64_t c = 0; c < of.known_width; ++c) {
    const int64_t slot = of.known_of(row)[c];
    known_log_probs[c] = -INFINITY;
    if (slot < 0) continue;
    known.push_back(of.tokens[tree * of.slots + slot]);
    const auto found = std::find(best.ids.begin(), best.ids.end(), known.back());
    if (found != best.ids.end()) known_log_probs[c] = best.log_law(found - best.ids.begin());
  }
  if (!known.empty()) put_last(known.data(), known.size(), best);
  const int64_t count = best.count(), shift = known.size();

  int64_t head = of.head, tail = of.tail;
  if (of.adaptive) {
    const int64_t chosen = num_chosen(best.law.data(), std::min(count, most + of.law), of.tail);
    head += chosen, tail -= chosen;
  }
  if (of.temperature[tree] <= 0) head += tail, tail = 0;
  head = std::min<int64_t>(head, std::accumulate(best.usable.begin(), best.usable.end(), (int64_t)0));

  double* probs = of.tail_probs + row * of.law;
  double total = 0;
  int64_t positive = 0;
  for (int64_t m = 0; m < of.law; ++m) {
    const int64_t place = std::min(head + m, count - 1);
    of.tail_ids[row * of.law + m] = best.ids[place];
    probs[m] = tail > 0 && head + m < count ? best.law[place] : 0;
    total += probs[m];
  }
  for (int64_t m = 0; m < of.law; ++m) {
    probs[m] = total > 0 ? probs[m] / total : 0;
    positive += probs[m] > 0;
  }
  if (!(total > 0)) tail = 0;
  if (of.distinct) tail = std::min(tail, positive);

  int64_t *tokens = of.child_tokens + row * size, *index = of.tail_index + row * size;
  std::fill(tokens, tokens + size, -1);
  std::fill(index, index + size, 0);
  std::copy(known.begin(), known.end(), tokens);
  std::vector<double> left(probs, probs + of.law);
  const double* uniforms = of.uniforms + tree * of.uniform_stride + (row % of.width) * most;
  for (int64_t k = 0; k < most; ++k) {
    log_probs[k] = -INFINITY;
    if (k >= head + tail) continue;
    int64_t place = k;
    if (k >= head) {
      const int64_t m = draw(left, uniforms[k]);
      if (of.distinct) left[m] = 0;
      index[shift + k] = m;
      place = head + m;
    }
    tokens[shift + k] = best.ids[place];
    log_probs[k] = best.log_law(place);
  }
  of.num_head[row] = shift + head;
  of.num_tail[row] = tail;
}

struct Candidate {
  double score;
  int64_t slot;
};

// Of equal ones the first. Scores are numbers.
inline void best_first(std::vector<Candidate>& candidates) {
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.score > b.score; });
}

struct Tree {
  const Level& of;
  int64_t tree;
  const double *log_probs, *known_log_probs;
  std::vector<Candidate> candidates;

  int64_t row(int64_t node) const { return tree * of.width + node; }
  int64_t known_of(int64_t row) const {
    int64_t count = 0;
    while (count < of.known_width && of.known_of(row)[count] >= 0) ++count;
    return count;
  }
  double score_of(int64_t row) const { return of.scores[tree * of.slots + of.frontier[row]]; }

  void fill(int64_t slot, int64_t token, int64_t parent, double score) {
    const int64_t at = tree * of.slots + slot;
    of.tokens[at] = std::max<int64_t>(token, 0);
    of.parents[at] = parent;
    of.scores[at] = score;
    bool* own = of.visible + at * of.slots;
    const bool* above = of.visible + (tree * of.slots + parent) * of.slots;
    for (int64_t s = 0; s < of.slots; ++s) own[s] = own[s] | above[s];
    candidates.push_back({score, slot});
  }

  // Keeps the best of the level's children, all nodes together, in the order of their places.
  void share() {
    const int64_t most = of.most(), size = of.row_slots();
    std::vector<Candidate> places;
    for (int64_t n = 0; n < of.width; ++n)
      for (int64_t k = 0; k < most; ++k) places.push_back({score_of(row(n)) + log_probs[n * most + k], n * most + k});
    best_first(places);
    places.resize(of.nodes);
    std::sort(places.begin(), places.end(), [](const Candidate& a, const Candidate& b) { return a.slot < b.slot; });
    size_t next = 0;
    for (int64_t n = 0; n < of.width; ++n) {
      const int64_t shift = known_of(row(n));
      int64_t* tokens = of.child_tokens + row(n) * size + shift;
      int64_t* children = of.children + row(n) * size + shift;
      of.num_head[row(n)] = shift;
      for (int64_t k = 0; k < most; ++k) {
        children[k] = -1;
        if (next < places.size() && places[next].slot == n * most + k) {
          children[k] = of.first + (int64_t)next;
          fill(children[k], tokens[k], of.frontier[row(n)], places[next++].score);
        } else {
          tokens[k] = -1;
        }
        of.num_head[row(n)] += tokens[k] >= 0;
      }
    }
  }

  // Each child in a slot of its own, if not equal draws lead to one.
  void place() {
    const int64_t most = of.most(), size = of.row_slots();
    for (int64_t n = 0; n < of.width; ++n) {
      const int64_t shift = known_of(row(n)), first = of.first + n * most;
      const int64_t* tokens = of.child_tokens + row(n) * size + shift;
      int64_t* children = of.children + row(n) * size + shift;
      for (int64_t k = 0; k < most; ++k) {
        const int64_t earliest = std::find(tokens, tokens + k, tokens[k]) - tokens;
        children[k] = first + (of.shares_nodes ? earliest : k);
        const bool counts = earliest == k && tokens[k] >= 0;
        fill(first + k, tokens[k], of.frontier[row(n)],
             counts ? score_of(row(n)) + log_probs[n * most + k] : -INFINITY);
      }
    }
  }

  // Known children come first, and are candidates for the next level too.
  void join() {
    const int64_t size = of.row_slots();
    for (Candidate& candidate : candidates) candidate.score = std::max(candidate.score, kLeast);
    for (int64_t n = 0; n < of.width; ++n)
      for (int64_t c = 0; c < of.known_width; ++c) {
        const int64_t slot = of.known_of(row(n))[c];
        if (slot < 0) {
          candidates.push_back({-INFINITY, 0});
          continue;
        }
        of.children[row(n) * size + c] = slot;
        const int64_t at = tree * of.slots + slot;
        of.scores[at] = score_of(row(n)) + std::max(known_log_probs[n * of.known_width + c], of.log_chances[at]);
        candidates.push_back({std::max(of.scores[at], kLeast), slot});
      }
  }

  void choose() {
    best_first(candidates);
    const int64_t total = of.trees * of.next_width;
    for (int64_t n = 0; n < of.next_width; ++n) {
      const int64_t slot = candidates[n].slot, to = tree * of.next_width + n, at = tree * of.slots + slot;
      of.next[to] = slot;
      of.inputs[to] = of.tokens[at];
      of.inputs[total + to] = of.roots[tree] + of.depth + 1;
      of.inputs[2 * total + to] = of.kv_starts[tree] + of.roots[tree] + slot;
      std::memcpy(of.masks + to * of.slots, of.visible + at * of.slots, of.slots);
    }
  }

  void grow() {
    std::fill(of.children + row(0) * of.row_slots(), of.children + row(of.width) * of.row_slots(), -1);
    of.shared ? share() : place();
    if (of.known_width) join();
    if (of.next_width) choose();
  }
};

}  // namespace grow

extern "C" void resispec_grow(const grow::Level* level, int threads) {
  const grow::Level& of = *level;
  const int64_t rows = of.trees * of.width, most = of.most();
  std::vector<double> log_probs(rows * most), known(rows * of.known_width);
#pragma omp parallel num_threads(threads) if (rows > 1 && rows * of.size >= grow::kWorthThreads)
  {
    grow::Ranked best;
#pragma omp for schedule(dynamic)
    for (int64_t row = 0; row < rows; ++row)
      grow::propose(of, row, best, log_probs.data() + row * most, known.data() + row * of.known_width);
  }
  for (int64_t tree = 0; tree < of.trees; ++tree)
    grow::Tree{of, tree, log_probs.data() + tree * of.width * most, known.data() + tree * of.width * of.known_width, {}}
        .grow();
}
