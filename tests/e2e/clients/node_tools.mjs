// Tools and structured answers by the helpers of the openai package and of the AI SDK, as one JSON object.
// Argument: the server's address.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, isStepCount, streamObject, streamText, tool } from "ai";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const baseURL = `${process.argv[2]}/v1`;
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Weather?" }];
const greedy = { model: "tiny", temperature: 0, max_tokens: 300 };
const result = {};

const Query = z.object({ city: z.enum(["Oslo", "Rome"]), days: z.int().min(1).max(9) });
const City = z.object({ name: z.string().max(6), kinds: z.array(z.enum(["hot", "cold"])).max(2) });
const description = "How the weather will be";

// What the tool was given, and what the whole conversation came to.
async function converse(start) {
  const asked = [];
  const run = (query) => {
    asked.push(query);
    return { sunny: query.days > 4 };
  };
  const weather = zodFunction({ name: "weather", description, parameters: Query, function: run });
  const runner = start([weather]);
  await runner.done();
  return { asked, roles: runner.messages.map((message) => message.role), messages: runner.messages };
}

const required = { ...greedy, messages, tool_choice: "required", parallel_tool_calls: false };
const named = { ...greedy, messages, tool_choice: { type: "function", function: { name: "weather" } } };
result.runner = await converse((tools) => client.chat.completions.runTools({ ...named, tools }));
result.runnerStream = await converse((tools) =>
  client.chat.completions.runTools({ ...named, tools, stream: true }),
);
result.runnerAgain = await converse((tools) =>
  client.chat.completions.runTools({ ...named, messages: result.runner.messages, tools }),
);

const parsed = await client.chat.completions.parse({
  ...required,
  tools: [zodFunction({ name: "weather", parameters: Query })],
});
result.parsedCall = parsed.choices[0].message.tool_calls[0].function.parsed_arguments;
const format = { response_format: zodResponseFormat(City, "city") };
result.parsed = (await client.chat.completions.parse({ ...greedy, messages, ...format })).choices[0].message.parsed;
const stream = client.chat.completions.stream({ ...greedy, messages, ...format });
result.parsedStream = (await stream.finalChatCompletion()).choices[0].message.parsed;

async function objects(model) {
  const asked = { model, schema: City, prompt: "Weather?", temperature: 0, maxOutputTokens: 300, maxRetries: 0 };
  const whole = await generateObject(asked);
  const growing = streamObject(asked);
  let parts = 0;
  for await (const _ of growing.partialObjectStream) parts += 1;
  return { whole: whole.object, stream: await growing.object, parts };
}

const compatible = createOpenAICompatible({
  name: "resispec",
  baseURL,
  apiKey: "none",
  supportsStructuredOutputs: true,
});
const own = createOpenAI({ baseURL, apiKey: "none" });
result.objects = await objects(compatible("tiny"));
result.objectsOfChat = await objects(own.chat("tiny"));
result.objectsOfResponses = await objects(own("tiny"));

const given = [];
const tools = {
  weather: tool({
    description,
    inputSchema: Query,
    execute: async (query) => {
      given.push(query);
      return { sunny: true };
    },
  }),
};
const calling = {
  model: compatible("tiny"),
  tools,
  toolChoice: "required",
  prompt: "Weather?",
  temperature: 0,
  maxOutputTokens: 300,
  maxRetries: 0,
  providerOptions: { resispec: { parallel_tool_calls: false } },
  stopWhen: isStepCount(2),
};
const answered = await generateText(calling);
result.calls = answered.steps.map((step) => step.toolCalls.map((call) => call.input));
const streamed = streamText(calling);
for await (const _ of streamed.textStream);
result.callsStream = (await streamed.steps).map((step) => step.toolCalls.map((call) => call.input));
result.given = given.length;

console.log(JSON.stringify(result));
