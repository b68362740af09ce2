// The AI SDK with its OpenAI-compatible provider, and with OpenAI's own, which asks for responses.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";

const baseURL = `${process.argv[2]}/v1`;
const compatible = createOpenAICompatible({ name: "resispec", baseURL, apiKey: "none" });
const own = createOpenAI({ baseURL, apiKey: "none" });
const asked = { prompt: "Hello there", temperature: 0, maxOutputTokens: 24, maxRetries: 0 };

async function both(model) {
  const whole = await generateText({ ...asked, model });
  const stream = streamText({ ...asked, model });
  let text = "";
  for await (const part of stream.textStream) text += part;
  return { text: whole.text, stream: text, finish: whole.finishReason, tokens: whole.usage.outputTokens };
}

const result = {
  chat: await both(compatible("tiny")),
  completion: await both(compatible.completionModel("tiny")),
  responses: await both(own("tiny")),
  system: (await generateText({ ...asked, model: compatible("tiny"), system: "Be brief." })).text,
};
console.log(JSON.stringify(result));
