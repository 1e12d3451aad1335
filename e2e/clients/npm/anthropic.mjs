import Anthropic from '@anthropic-ai/sdk';
import { weather } from './failure.mjs';

async function run(place, ask, answer, piece, signal) {
  const client = new Anthropic({ baseURL: place.base, apiKey: place.key, maxRetries: 0 });
  switch (ask.kind) {
    case 'chat':
      return chat(client, params(place, ask), ask, answer, piece, signal);
    case 'count': {
      const { model, messages } = params(place, ask);
      const r = await client.messages.countTokens({ model, messages });
      piece(r);
      answer.in = r.input_tokens;
      return;
    }
    case 'list':
      for await (const model of client.models.list()) {
        piece(model);
        answer.names.push(model.id);
      }
      return;
    case 'model': {
      const model = await client.models.retrieve(place.model);
      piece(model);
      answer.names.push(model.id);
      return;
    }
  }
  throw new Error(`@anthropic-ai/sdk can't ${ask.kind}`);
}

// The stream is read by the client's own helper, which puts the message together and checks that it is whole.
async function chat(client, p, ask, answer, piece, signal) {
  let said;
  if (ask.stream) {
    const stream = client.messages.stream(p, { signal });
    for await (const event of stream) piece(structuredClone(event));
    said = await stream.finalMessage();
  } else {
    said = await client.messages.create(p);
    piece(said);
  }
  for (const block of said.content) {
    if (block.type === 'text') answer.text += block.text;
    if (block.type === 'thinking') answer.reasoning += block.thinking;
    if (block.type === 'tool_use') answer.calls.push({ id: block.id, name: block.name, arguments: JSON.stringify(block.input) });
  }
  answer.finish = said.stop_reason;
  answer.in = said.usage.input_tokens + (said.usage.cache_read_input_tokens ?? 0) + (said.usage.cache_creation_input_tokens ?? 0);
  answer.out = said.usage.output_tokens;
}

function params(place, ask) {
  const p = { model: place.model, max_tokens: ask.maxTokens, messages: [], ...ask.extra };
  for (const m of ask.messages) {
    if (m.role === 'system') p.system = m.text;
    else p.messages.push(message(m));
  }
  if (ask.stop) p.stop_sequences = [ask.stop];
  if (ask.think) p.thinking = { type: 'enabled', budget_tokens: 1024 };
  if (ask.tools) p.tools = [{ name: weather.name, description: weather.description, input_schema: weather.schema }];
  return p;
}

function message(m) {
  if (m.role === 'tool') return { role: 'user', content: [{ type: 'tool_result', tool_use_id: m.callId, content: m.text }] };
  const content = [];
  if (m.reasoning) content.push({ type: 'thinking', thinking: m.reasoning, signature: 'iop-unsigned' });
  if (m.image) content.push({ type: 'image', source: { type: 'base64', media_type: 'image/png', data: m.image } });
  if (m.text) content.push({ type: 'text', text: m.text });
  for (const c of m.calls ?? []) content.push({ type: 'tool_use', id: c.id, name: c.name, input: JSON.parse(c.arguments) });
  return { role: m.role, content };
}

export const anthropic = { 'npm @anthropic-ai/sdk': run };
