// Verification's passes over rows as wide as a vocabulary, and the tests of a node's children.
//
// Plain C functions, built and threaded as models/native/kernels.cpp is; `library.py` binds them and says what
// they take. A row is worked on by one thread, always in the same order, so its numbers depend on no other row.

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "../../models/native/vectors.h"
#include "grow.h"

namespace {

typedef double Doubles __attribute__((vector_size(64)));
typedef float Half __attribute__((vector_size(32)));
constexpr int64_t kWide = 8;     // numbers in a vector of float64
constexpr int64_t kWorthThreads = 1 << 18;  // numbers: fewer are done sooner than a second thread may wake
constexpr int64_t kBlock = 512;  // numbers that are added up together; a multiple of 4 * kWide

inline Floats load_or(const float* from, int64_t count, float fill) {
  float some[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) some[i] = i < count ? from[i] : fill;
  return load(some);
}

struct Largest {
  float value;
  bool are_numbers;  // all of the row
};

Largest largest_of(const float* row, int64_t size) {
  Floats most[4];
  Ints odd[4];
  for (int k = 0; k < 4; ++k) most[k] = all(-INFINITY), odd[k] = Ints{};
  int64_t i = 0;
  for (; i + 4 * kLanes <= size; i += 4 * kLanes)
    for (int k = 0; k < 4; ++k) {
      Floats x = load(row + i + k * kLanes);
      most[k] = larger(x, most[k]);
      odd[k] |= x != x;
    }
  for (; i < size; i += kLanes) {
    Floats x = load_or(row + i, size - i, -INFINITY);
    most[0] = larger(x, most[0]);
    odd[0] |= x != x;
  }
  odd[0] |= odd[1] | odd[2] | odd[3];
  int32_t any = 0;
  for (int64_t k = 0; k < kLanes; ++k) any |= odd[0][k];
  return {largest(larger(larger(most[0], most[1]), larger(most[2], most[3]))), any == 0};
}

inline int64_t first_with(const float* row, int64_t size, float value) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    Ints same = load(row + i) == all(value);
    int32_t any = 0;
    for (int64_t k = 0; k < kLanes; ++k) any |= same[k];
    if (any) break;
  }
  for (; i < size; ++i)
    if (row[i] == value) return i;
  return 0;
}

// The softmax of a row at a temperature; 0: all of it on the first of the largest. False for what is no law.
bool make_law(const float* row, int64_t size, float temperature, float* out) {
  const Largest top = largest_of(row, size);
  const bool is_law = top.are_numbers && std::isfinite(top.value);
  if (!is_law || temperature == 0) {
    std::memset(out, 0, size * sizeof(float));
    out[is_law ? first_with(row, size, top.value) : 0] = 1;
    return is_law;
  }
  Floats total[2] = {};
  const bool scaled = temperature != 1;
  int64_t i = 0;
  for (; i + 2 * kLanes <= size; i += 2 * kLanes)
    for (int k = 0; k < 2; ++k) {
      Floats x = load(row + i + k * kLanes) - top.value;
      Floats e = exponential(scaled ? x / temperature : x);
      store(out + i + k * kLanes, e);
      total[k] += e;
    }
  for (; i < size; i += kLanes) {
    Floats x = load_or(row + i, size - i, -INFINITY) - top.value;
    Floats e = exponential(scaled ? x / temperature : x);
    store_some(out + i, e, size - i < kLanes ? size - i : kLanes);
    total[0] += e;
  }
  const float share = 1 / sum(total[0] + total[1]);
  for (i = 0; i + kLanes <= size; i += kLanes) store(out + i, load(out + i) * share);
  for (; i < size; ++i) out[i] *= share;
  return true;
}

inline Doubles wide(const double* from) {
  Doubles x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

inline Doubles wide(const float* from) {
  Half x;
  std::memcpy(&x, from, sizeof x);
  return __builtin_convertvector(x, Doubles);
}

template <typename T>
double sum_of(const T* from, int64_t count) {
  Doubles sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * kWide <= count; i += 4 * kWide)
    for (int k = 0; k < 4; ++k) sums[k] += wide(from + i + k * kWide);
  sums[0] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  double total = 0;
  for (int64_t k = 0; k < kWide; ++k) total += sums[0][k];
  for (; i < count; ++i) total += from[i];
  return total;
}

struct Cap {
  int64_t id;
  double most;
};

// A row of weights, of which some count for no more than their caps: read block by block, as float64.
template <typename T>
struct Capped {
  const T* weights;
  int64_t size;
  std::vector<Cap> caps;
  double block[kBlock];

  Capped(const T* weights, int64_t size) : weights(weights), size(size) {}

  bool holds(int64_t id) const { return id >= 0 && id < size; }

  void cap(int64_t id, double most) {
    if (holds(id)) caps.push_back({id, most});
  }

  // The weight of a token, which counts for nothing from here on.
  double take(int64_t id) {
    if (!holds(id)) return 0;
    cap(id, 0);
    return weights[id];
  }

  void ready() {
    std::sort(caps.begin(), caps.end(), [](const Cap& a, const Cap& b) { return a.id < b.id; });
  }

  int64_t blocks() const { return whole(size, kBlock); }

  int64_t length(int64_t b) const { return std::min(kBlock, size - b * kBlock); }

  // The block in `block`, and whether anything of it is capped. `next`: of the caps, moved past the block.
  bool read(int64_t b, size_t& next, bool always) {
    const int64_t first = b * kBlock, count = length(b);
    const bool some = next < caps.size() && caps[next].id < first + count;
    if (!some && !always) return false;
    for (int64_t i = 0; i < count; ++i) block[i] = weights[first + i];
    for (; next < caps.size() && caps[next].id < first + count; ++next) {
      double& weight = block[caps[next].id - first];
      weight = std::min(weight, caps[next].most);
    }
    return true;
  }

  double sum_block(int64_t b, size_t& next) {
    return read(b, next, false) ? sum_of(block, length(b)) : sum_of(weights + b * kBlock, length(b));
  }

  double total() {
    size_t next = 0;
    double sum = 0;
    for (int64_t b = 0; b < blocks(); ++b) sum += sum_block(b, next);
    return sum;
  }

  // The first index whose running sum exceeds `uniform` times the total, or else the last that weighs something.
  int64_t draw(double uniform, bool* empty) {
    std::vector<double> sums(blocks());
    size_t next = 0;
    double all_of_it = 0;
    for (int64_t b = 0; b < blocks(); ++b) all_of_it += sums[b] = sum_block(b, next);
    *empty = !(all_of_it > 0);
    double aim = uniform * all_of_it, running = 0, before = 0;
    int64_t last = 0;
    for (int64_t b = 0; b < blocks() && running <= aim; ++b)
      if (sums[b] > 0) last = b, before = running, running += sums[b];
    if (running <= aim) aim = INFINITY;  // it was rounded up to the total
    next = std::lower_bound(caps.begin(), caps.end(), last * kBlock,
                            [](const Cap& a, int64_t id) { return a.id < id; }) - caps.begin();
    read(last, next, true);
    int64_t found = 0;
    for (int64_t i = 0; i < length(last); ++i) {
      if (!(block[i] > 0)) continue;
      found = i;
      before += block[i];
      if (before > aim) break;
    }
    return last * kBlock + found;
  }
};

// The thresholds of a node, as thresholds.py has them: `t` [most + 1], `reach` [most], both 0 beyond its n draws.
struct Solver {
  struct Kink {
    double at, p, q;
  };
  std::vector<Kink> kinks;
  std::vector<double> p_before, q_before, p_after, q_after, t, reach;
  double elsewhere, remainder;
  int64_t n;

  int64_t segment(double x) const {
    return std::lower_bound(kinks.begin(), kinks.end(), x, [](const Kink& k, double y) { return k.at < y; }) -
           kinks.begin();
  }

  double excess(double x) const {
    const int64_t j = segment(x);
    return std::max(q_before[j] * x - p_before[j], 0.0);
  }

  double left(double x) const {
    const int64_t j = segment(x);
    return std::max(p_after[j] - q_after[j] * x, 0.0) + elsewhere;
  }

  // t_{n+1} as a function of t_1.
  double last(double first) const {
    const double refused = left(first);
    double x = first - 1;
    for (int64_t i = 2; i <= n; ++i) x = excess(x) - refused;
    return x;
  }

  // The largest in [1, n] with t_{n+1} <= 0, which never falls: 1 always has.
  double first() const {
    double low = 1, high = n;
    if (n == 1 || last(high) <= 0) return high;
    for (;;) {
      const double middle = low + (high - low) / 2;
      if (!(low < middle && middle < high)) return low;
      (last(middle) <= 0 ? low : high) = middle;
    }
  }

  void solve(const double* p, const double* q, int64_t size, double p_elsewhere, int64_t draws) {
    n = draws, elsewhere = p_elsewhere;
    t.assign(n + 1, 0), reach.assign(n, 0);
    kinks.clear();
    for (int64_t m = 0; m < size; ++m)
      if (q[m] > 0) kinks.push_back({p[m] / q[m], p[m], q[m]});
    std::sort(kinks.begin(), kinks.end(), [](const Kink& a, const Kink& b) { return a.at < b.at; });
    const int64_t count = kinks.size();
    for (std::vector<double>* sums : {&p_before, &q_before, &p_after, &q_after}) sums->assign(count + 1, 0);
    for (int64_t j = 0; j < count; ++j) {
      p_before[j + 1] = p_before[j] + kinks[j].p;
      q_before[j + 1] = q_before[j] + kinks[j].q;
    }
    for (int64_t j = count; j-- > 0;) {
      p_after[j] = p_after[j + 1] + kinks[j].p;
      q_after[j] = q_after[j + 1] + kinks[j].q;
    }
    if (n > 0) t[0] = first();
    double excess_of_p = 0;
    for (const Kink& kink : kinks) excess_of_p += std::max(kink.p - kink.q * t[0], 0.0);
    remainder = excess_of_p + elsewhere;
    for (int64_t i = 1; i < n; ++i) {
      const double following = i == 1 ? t[0] - 1 : excess(t[i - 1]) - remainder;
      t[i] = std::min(std::max(following, 0.0), t[i - 1]);
    }
    for (int64_t i = 0; i < n; ++i) {
      const int64_t j = segment(t[i]);
      reach[i] = p_before[j] + q_after[j] * t[i] + remainder;
    }
  }
};

// Children of nodes, as `Proposal` has them; `slots` of tokens, tail_index and `throws` uniforms a node.
struct Children {
  const int64_t *tokens, *num_head, *num_tail, *tail_ids, *tail_index;
  const double *tail_probs, *uniforms;
  int64_t slots, width, throws;
};

template <typename T>
void decide_node(const T* weights, int64_t size, const Children& of, int64_t node, int64_t* child,
                 double* threshold) {
  const int64_t slots = of.slots, width = of.width;
  const int64_t head = of.num_head[node], draws = width ? of.num_tail[node] : 0;
  const int64_t *tokens = of.tokens + node * slots, *ids = of.tail_ids + node * width;
  const double* q = of.tail_probs + node * width;
  const double* uniforms = of.uniforms + node * of.throws;
  Capped<T> rest(weights, size);
  std::vector<double> p(slots + width, 0);  // of the head, then of the tail's law
  double total = 0;
  for (int64_t k = 0; k < head; ++k) total += p[k] = rest.take(tokens[k]);
  for (int64_t m = 0; m < width; ++m)
    if (q[m] > 0) total += p[slots + m] = rest.take(ids[m]);
  rest.ready();
  const double outside = rest.total();
  total += outside;
  double on_head = 0;
  for (double& weight : p) weight /= total;
  for (int64_t k = 0; k < head; ++k) on_head += p[k];
  Solver solved;
  solved.solve(p.data() + slots, q, width, on_head + outside / total, draws);
  *threshold = solved.t[0];
  *child = -1;
  for (int64_t i = 0; i < draws && *child < 0; ++i) {
    const int64_t slot = head + i, m = of.tail_index[node * slots + slot];
    const double offered = std::min(p[slots + m], q[m] * solved.t[i]);
    const double reserved = std::min(p[slots + m], q[m] * solved.t[i + 1]);  // for later siblings
    if (uniforms[std::min(slot, of.throws - 1)] * (solved.reach[i] * q[m]) < offered - reserved) *child = slot;
  }
  double mass = 0;
  for (int64_t k = 0; k < head && *child < 0; ++k) {
    mass += p[k];
    if (uniforms[0] * solved.remainder < mass) *child = k;
  }
}

template <typename T>
void decide_all(const T* weights, int64_t size, const Children& of, int64_t rows, int64_t* child,
                double* threshold, int threads) {
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (rows > 1 && rows * size > kWorthThreads)
  for (int64_t row = 0; row < rows; ++row)
    decide_node(weights + row * size, size, of, row, child + row, threshold + row);
}

template <typename T>
void sum_all(const T* weights, int64_t stride, int64_t rows, int64_t size, const int64_t* ids, const bool* without,
             int64_t listed, double* sums, int threads) {
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (rows > 1 && rows * size > kWorthThreads)
  for (int64_t row = 0; row < rows; ++row) {
    Capped<T> rest(weights + row * stride, size);
    for (int64_t k = row * listed; k < (row + 1) * listed; ++k)
      if (without[k]) rest.cap(ids[k], 0);
    rest.ready();
    sums[row] = rest.total();
  }
}

template <typename T>
void draw_all(const T* weights, int64_t stride, int64_t rows, int64_t size, const int64_t* ids, const double* caps,
              int64_t listed, const double* uniforms, int64_t* tokens, bool* empty, int threads) {
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (rows > 1 && rows * size > kWorthThreads)
  for (int64_t row = 0; row < rows; ++row) {
    Capped<T> left(weights + row * stride, size);
    for (int64_t k = row * listed; k < (row + 1) * listed; ++k)
      if (caps[k] < INFINITY) left.cap(ids[k], caps[k]);
    left.ready();
    tokens[row] = left.draw(uniforms[row], empty + row);
  }
}

// The expanded nodes of trees of one shape in one level, or any others. Every field takes 8 bytes: library.py fills
// them in. A tree's nodes are numbered from its base, where its root is.
struct Rows {
  int64_t trees, expand, slots, width;
  const int64_t* firsts;              // [trees, expand]: where a row's uniforms begin; null: all are greedy
  const int64_t* bases;               // [trees]
  const int64_t *parents, *children;  // [trees, expand], [trees, expand, slots]: nodes; -1: no child
  const int64_t *tokens, *num_head, *num_tail, *tail_ids, *tail_index;
  const double* tail_probs;
};

// Where a node's children are; none: it is a leaf.
struct Place {
  const Rows* rows = nullptr;
  int64_t row = 0;

  int64_t slots() const { return rows ? rows->slots : 0; }

  int64_t token(int64_t slot) const { return rows->tokens[row * rows->slots + slot]; }

  int64_t child(int64_t slot) const {
    const int64_t below = rows->children[row * rows->slots + slot];
    return below < 0 ? -1 : rows->bases[row / rows->expand] + below;
  }
};

struct Logits {
  const float* rows;
  int64_t stride, size;

  const float* of(int64_t node) const { return rows + node * stride; }
};

// A walk in the making: what `resispec_walk` writes of it.
struct Path {
  int64_t *head, *slots, *tokens, *children;  // head: how many were kept, the last token, underflow, bad
  int64_t root, length;

  Path(int64_t* out, int64_t root, int64_t depth)
      : head(out), slots(out + 4), tokens(out + 4 + depth), children(out + 4 + 2 * depth), root(root), length(0) {
    std::fill(out, out + 4, 0);
    std::fill(slots, slots + 3 * depth, -1);
  }

  void keep(int64_t node, int64_t token, int64_t child) {
    slots[length] = node - root, tokens[length] = token, children[length] = child;
    head[0] = ++length;
  }

  void end(int64_t token, bool underflow) { head[1] = token, head[2] = underflow; }

  void fail() { head[3] = 1; }
};

// Where all of the law is on one token: down to the node where no child holds it.
void walk_greedily(const std::vector<Place>& places, const Logits& logits, int64_t depth, Path& path) {
  for (int64_t node = path.root;;) {
    const float* row = logits.of(node);
    const Largest top = largest_of(row, logits.size);
    if (!top.are_numbers || !std::isfinite(top.value)) return path.fail();
    const int64_t token = first_with(row, logits.size, top.value);
    const Place place = path.length < depth ? places[node] : Place();
    int64_t slot = 0;
    while (slot < place.slots() && place.token(slot) != token) ++slot;
    if (slot == place.slots()) return path.end(token, false);
    node = place.child(slot);
    path.keep(node, token, slot);
  }
}

// The last token, where no child is kept: from the law without what the children have been given of it.
void draw_last(const float* law, int64_t size, const Place& place, double threshold, double uniform, Path& path) {
  bool empty = false;
  if (place.rows) {
    const Rows& rows = *place.rows;
    Capped<float> left(law, size);
    const double scale = threshold * left.total();
    for (int64_t k = 0; k < rows.num_head[place.row]; ++k) left.cap(place.token(k), 0);
    for (int64_t m = place.row * rows.width; m < (place.row + 1) * rows.width; ++m)
      if (rows.tail_probs[m] > 0 && left.holds(rows.tail_ids[m]))
        left.cap(rows.tail_ids[m], std::max(law[rows.tail_ids[m]] - rows.tail_probs[m] * scale, 0.0));
    left.ready();
    const int64_t token = left.draw(uniform, &empty);
    if (!empty) return path.end(token, false);
  }
  bool nothing = false;
  const int64_t token = Capped<float>(law, size).draw(uniform, &nothing);
  path.end(token, empty || nothing);
}

void walk_randomly(const std::vector<Place>& places, const Logits& logits, float temperature, int64_t depth,
                   const double* uniforms, double last, Path& path) {
  const std::unique_ptr<float[]> law(new float[logits.size]);
  for (int64_t node = path.root;;) {
    if (!make_law(logits.of(node), logits.size, temperature, law.get())) return path.fail();
    const Place place = path.length < depth ? places[node] : Place();
    int64_t slot = -1;
    double threshold = 0;
    if (place.rows) {
      const Rows& rows = *place.rows;
      const int64_t row = place.row, slots = rows.slots, width = rows.width;
      const Children of{rows.tokens + row * slots,    rows.num_head + row,          rows.num_tail + row,
                        rows.tail_ids + row * width,  rows.tail_index + row * slots, rows.tail_probs + row * width,
                        uniforms + rows.firsts[row], slots,                         width,
                        slots};
      decide_node(law.get(), logits.size, of, 0, &slot, &threshold);
    }
    if (slot < 0) return draw_last(law.get(), logits.size, place, threshold, last, path);
    node = place.child(slot);
    path.keep(node, place.token(slot), slot);
  }
}

}  // namespace

// `kind` is 0 for float32 and 1 for float64; rows lie `stride` numbers apart.
extern "C" {

// weights: [count, size]; bad: [count]; logits: rows of `size`; nodes: [count], the rows meant; temperature: [count].
void resispec_laws(float* weights, bool* bad, const float* logits, int64_t stride, const int64_t* nodes,
                   const float* temperature, int64_t count, int64_t size, int threads) {
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (count > 1 && count * size > kWorthThreads)
  for (int64_t i = 0; i < count; ++i)
    bad[i] = !make_law(logits + nodes[i] * stride, size, temperature[i], weights + i * size);
}

// tokens, bad: [count]; otherwise as above.
void resispec_largest(int64_t* tokens, bool* bad, const float* logits, int64_t stride, const int64_t* nodes,
                      int64_t count, int64_t size, int threads) {
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (count > 1 && count * size > kWorthThreads)
  for (int64_t i = 0; i < count; ++i) {
    const float* row = logits + nodes[i] * stride;
    const Largest top = largest_of(row, size);
    bad[i] = !(top.are_numbers && std::isfinite(top.value));
    tokens[i] = bad[i] ? 0 : first_with(row, size, top.value);
  }
}

// sums: [rows]; ids, without: [rows, listed].
void resispec_sums(double* sums, const void* weights, int64_t stride, int64_t rows, int64_t size,
                   const int64_t* ids, const bool* without, int64_t listed, int kind, int threads) {
  if (kind) sum_all((const double*)weights, stride, rows, size, ids, without, listed, sums, threads);
  else sum_all((const float*)weights, stride, rows, size, ids, without, listed, sums, threads);
}

// tokens, empty, uniforms: [rows]; ids, caps: [rows, listed].
void resispec_draw(int64_t* tokens, bool* empty, const void* weights, int64_t stride, int64_t rows, int64_t size,
                   const int64_t* ids, const double* caps, int64_t listed, const double* uniforms, int kind,
                   int threads) {
  if (kind) draw_all((const double*)weights, stride, rows, size, ids, caps, listed, uniforms, tokens, empty, threads);
  else draw_all((const float*)weights, stride, rows, size, ids, caps, listed, uniforms, tokens, empty, threads);
}

// child, threshold, num_head, num_tail: [rows]; weights: [rows, size]; tokens, tail_index: [rows, slots];
// tail_ids, tail_probs: [rows, width]; uniforms: [rows, throws].
void resispec_decide(int64_t* child, double* threshold, const void* weights, int64_t rows, int64_t size,
                     const int64_t* tokens, const int64_t* num_head, const int64_t* num_tail, const int64_t* tail_ids,
                     const double* tail_probs, const int64_t* tail_index, const double* uniforms, int64_t slots,
                     int64_t width, int64_t throws, int kind, int threads) {
  const Children of{tokens, num_head, num_tail, tail_ids, tail_index, tail_probs, uniforms, slots, width, throws};
  if (kind) decide_all((const double*)weights, size, of, rows, child, threshold, threads);
  else decide_all((const float*)weights, size, of, rows, child, threshold, threads);
}

// out: [requests, 4 + 3 * depth], a `Path` each; logits: rows of `size`, one of each of `nodes`; roots, temperature,
// last: [requests]; blocks: [count], of which a later one counts where two hold a node; uniforms: of the rows.
void resispec_walk(int64_t* out, const float* logits, int64_t stride, int64_t size, int64_t nodes,
                   const int64_t* roots, const float* temperature, const double* last, int64_t requests,
                   int64_t depth, const void* blocks, int64_t count, const double* uniforms, int threads) {
  std::vector<Place> places(nodes);
  for (const Rows *rows = (const Rows*)blocks, *end = rows + count; rows < end; ++rows)
    for (int64_t row = 0; row < rows->trees * rows->expand; ++row)
      places[rows->bases[row / rows->expand] + rows->parents[row]] = {rows, row};
  const Logits all{logits, stride, size};
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (requests > 1 && requests * size > kWorthThreads)
  for (int64_t i = 0; i < requests; ++i) {
    Path path(out + i * (4 + 3 * depth), roots[i], depth);
    if (temperature[i] == 0) walk_greedily(places, all, depth, path);
    else walk_randomly(places, all, temperature[i], depth, uniforms, last[i], path);
  }
}

}
