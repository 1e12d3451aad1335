import { Ollama } from 'ollama';
import { toolNames, weather } from './failure.mjs';

async function run(place, ask, answer, piece, signal) {
  const client = new Ollama({ host: place.base, headers: { Authorization: `Bearer ${place.key}` } });
  signal.addEventListener('abort', () => client.abort());
  switch (ask.kind) {
    case 'chat': {
      const p = { ...params(place, ask), messages: ask.messages.map(message(toolNames(ask.messages))) };
      if (ask.tools) p.tools = [{ type: 'function', function: { name: weather.name, description: weather.description, parameters: weather.schema } }];
      return read(await client.chat(p), ask, piece, (said) => tell(answer, said, said.message));
    }
    case 'generate':
      return read(await client.generate({ ...params(place, ask), prompt: ask.messages[0].text }), ask, piece, (said) =>
        tell(answer, said, { content: said.response, thinking: said.thinking }));
    case 'embed': {
      const r = await client.embed({ model: place.model, input: [ask.messages[0].text] });
      piece(r);
      return Object.assign(answer, { vector: r.embeddings[0], in: r.prompt_eval_count });
    }
    case 'list':
    case 'ps':
      for (const model of (await client[ask.kind]()).models) {
        piece(model);
        answer.names.push(model.name);
      }
      return;
    case 'model':
      return piece(await client.show({ model: place.model }));
    case 'version':
      answer.text = (await client.version()).version;
      return;
  }
  throw new Error(`ollama can't ${ask.kind}`);
}

async function read(said, ask, piece, take) {
  if (!ask.stream) {
    piece(said);
    return take(said);
  }
  for await (const part of said) {
    take(part);
    piece(part);
  }
}

function tell(answer, said, message) {
  answer.text += message.content ?? '';
  answer.reasoning += message.thinking ?? '';
  for (const c of message.tool_calls ?? []) {
    answer.calls.push({ id: c.id ?? '', name: c.function.name, arguments: JSON.stringify(c.function.arguments) });
  }
  answer.finish = said.done_reason ?? '';
  answer.in = said.prompt_eval_count ?? 0;
  answer.out = said.eval_count ?? 0;
}

function params(place, ask) {
  const options = { ...ask.extra };
  if (ask.maxTokens) options.num_predict = ask.maxTokens;
  if (ask.stop) options.stop = [ask.stop];
  return { model: place.model, stream: ask.stream ?? false, options, ...(ask.think && { think: true }) };
}

const message = (names) => (m) => ({
  role: m.role,
  content: m.text,
  ...(m.reasoning && { thinking: m.reasoning }),
  ...(m.image && { images: [m.image] }),
  ...(m.calls && { tool_calls: m.calls.map((c) => ({ function: { name: c.name, arguments: JSON.parse(c.arguments) } })) }),
  ...(m.callId && { tool_name: names[m.callId] }),
});

export const ollama = { 'npm ollama': run };
