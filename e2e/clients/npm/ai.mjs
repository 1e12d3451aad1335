import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { embed, generateText, jsonSchema, streamText, tool } from 'ai';
import { failure, toolNames, weather } from './failure.mjs';

// Vercel's AI SDK, with its own two providers that take a base URL.
const compatible = (place) => createOpenAICompatible({ name: 'iop', baseURL: place.base + '/v1', apiKey: place.key, includeUsage: true });
const claude = (place) => createAnthropic({ baseURL: place.base + '/v1', apiKey: place.key });

const run = (provider, more) => async (place, ask, answer, piece, signal) => {
  if (ask.kind === 'embed') {
    const r = await embed({ model: provider(place).embeddingModel(place.model), value: ask.messages[0].text, maxRetries: 0 });
    return Object.assign(answer, { vector: r.embedding, in: r.usage.tokens });
  }
  const p = { ...params(ask), ...more(ask), model: provider(place)(place.model), abortSignal: signal };
  return ask.stream ? stream(p, answer, piece) : whole(p, answer, piece);
};

async function whole(p, answer, piece) {
  const r = await generateText(p);
  piece(r.content);
  piece(r.providerMetadata ?? null);
  piece(r.warnings ?? null);
  piece({ model: r.response.modelId, body: r.response.body ?? null });
  answer.text = r.text;
  answer.reasoning = r.reasoningText ?? '';
  r.toolCalls.forEach((c) => called(answer, c));
  ended(answer, r);
}

async function stream(p, answer, piece) {
  const r = streamText({ ...p, includeRawChunks: true, onError: () => {} }); // errors come as parts
  for await (const part of r.fullStream) {
    const { request, response, performance, error, ...rest } = part;
    piece({ ...rest, model: response?.modelId, error: error && failure(error) });
    if (part.type === 'text-delta') answer.text += part.text;
    if (part.type === 'reasoning-delta') answer.reasoning += part.text;
    if (part.type === 'tool-call') called(answer, part);
    if (part.type === 'finish') ended(answer, { finishReason: part.finishReason, usage: part.totalUsage });
    if (part.type === 'error') throw part.error;
  }
}

function called(answer, c) {
  answer.calls.push({ id: c.toolCallId, name: c.toolName, arguments: JSON.stringify(c.input) });
}

function ended(answer, r) {
  answer.finish = r.finishReason;
  answer.in = r.usage.inputTokens ?? 0;
  answer.out = r.usage.outputTokens ?? 0;
}

function params(ask) {
  const names = toolNames(ask.messages);
  const system = ask.messages.find((m) => m.role === 'system');
  return {
    ...(system && { instructions: system.text }),
    messages: ask.messages.filter((m) => m !== system).map((m) => message(m, names)),
    maxRetries: 0,
    ...(ask.maxTokens && { maxOutputTokens: ask.maxTokens }),
    ...(ask.stop && { stopSequences: [ask.stop] }),
    ...(ask.tools && { tools: { [weather.name]: tool({ description: weather.description, inputSchema: jsonSchema(weather.schema) }) } }),
  };
}

function message(m, names) {
  if (m.role === 'tool') {
    const output = { type: 'text', value: m.text };
    return { role: 'tool', content: [{ type: 'tool-result', toolCallId: m.callId, toolName: names[m.callId], output }] };
  }
  const content = [];
  if (m.reasoning) content.push({ type: 'reasoning', text: m.reasoning, providerOptions: { anthropic: { signature: 'iop-unsigned' } } });
  if (m.text) content.push({ type: 'text', text: m.text });
  if (m.image) content.push({ type: 'file', data: m.image, mediaType: 'image/png' });
  for (const c of m.calls ?? []) content.push({ type: 'tool-call', toolCallId: c.id, toolName: c.name, input: JSON.parse(c.arguments) });
  return { role: m.role, content };
}

export const ai = {
  'npm ai, openai-compatible': run(compatible, () => ({})),
  'npm ai, anthropic': run(claude, (ask) => (ask.think ? { providerOptions: { anthropic: { thinking: { type: 'enabled', budgetTokens: 1024 } } } } : {})),
};
