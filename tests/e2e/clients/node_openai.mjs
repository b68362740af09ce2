// The openai package: what each way of asking gives, as one JSON object. Argument: the server's address.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Hello there" }];
const greedy = { model: "tiny", temperature: 0, max_tokens: 24 };
const result = {};

result.models = [];
for await (const model of client.models.list()) result.models.push(model.id);

result.chat = (await client.chat.completions.create({ ...greedy, messages })).choices[0].message.content;
result.chatStream = "";
const chunks = await client.chat.completions.create({
  ...greedy,
  messages,
  stream: true,
  stream_options: { include_usage: true },
});
for await (const chunk of chunks) {
  result.chatStream += chunk.choices[0]?.delta?.content ?? "";
  if (chunk.usage) result.usage = chunk.usage;
}
result.chatHelper = await client.chat.completions.stream({ ...greedy, messages }).finalContent();

result.completion = (await client.completions.create({ ...greedy, prompt: "abc" })).choices[0].text;
result.completionStream = "";
for await (const chunk of await client.completions.create({ ...greedy, prompt: "abc", stream: true })) {
  result.completionStream += chunk.choices[0].text;
}

const raw = await client.chat.completions.create({ ...greedy, messages }).withResponse();
result.requestId = raw.request_id;

const asked = { model: "tiny", temperature: 0, max_output_tokens: 24, input: "Hello there" };
const response = await client.responses.create(asked);
result.response = response.output_text;
result.retrieved = (await client.responses.retrieve(response.id)).output_text;
result.responseStream = "";
result.events = [];
for await (const event of await client.responses.create({ ...asked, stream: true })) {
  if (event.type === "response.output_text.delta") result.responseStream += event.delta;
  else result.events.push(event.type);
}
await client.responses.delete(response.id);
result.deleted = await client.responses.retrieve(response.id).catch((error) => error.status);

result.refused = await client.chat.completions
  .create({ ...greedy, messages, temperature: -1 })
  .catch((error) => [error.constructor.name, error.param]);

console.log(JSON.stringify(result));
