import OpenAI from 'openai';
import { weather } from './failure.mjs';

async function run(place, ask, answer, piece, signal) {
  const client = new OpenAI({ baseURL: place.base + '/v1', apiKey: place.key, maxRetries: 0 });
  switch (ask.kind) {
    case 'chat':
      return ask.stream ? stream(client, place, ask, answer, piece, signal) : whole(client, place, ask, answer, piece);
    case 'responses':
      return response(client, place, ask, answer, piece);
    case 'completions': {
      const r = await client.completions.create({ model: place.model, prompt: ask.messages[0].text, max_tokens: 9 });
      piece(r);
      return Object.assign(answer, { text: r.choices[0].text, finish: r.choices[0].finish_reason, in: r.usage.prompt_tokens, out: r.usage.completion_tokens });
    }
    case 'embed': {
      const r = await client.embeddings.create({ model: place.model, input: [ask.messages[0].text] });
      piece(r);
      return Object.assign(answer, { vector: r.data[0].embedding, in: r.usage.prompt_tokens });
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
  throw new Error(`openai can't ${ask.kind}`);
}

async function whole(client, place, ask, answer, piece) {
  const r = await client.chat.completions.create(params(place, ask));
  piece(r);
  const [{ message, finish_reason }] = r.choices;
  answer.text = message.content ?? '';
  answer.reasoning = reasoning(message);
  tell(answer, message.tool_calls, finish_reason, r.usage);
}

// The stream is read by the client's own helper, which puts the answer together and checks that it is whole.
async function stream(client, place, ask, answer, piece, signal) {
  const runner = client.chat.completions.stream({ ...params(place, ask), stream_options: { include_usage: true } }, { signal });
  for await (const chunk of runner) {
    piece(chunk);
    for (const { delta } of chunk.choices) {
      answer.text += delta.content ?? '';
      answer.reasoning += reasoning(delta);
    }
  }
  const { choices, usage } = await runner.finalChatCompletion();
  tell(answer, choices[0].message.tool_calls, choices[0].finish_reason, usage);
  if ((choices[0].message.content ?? '') !== answer.text) throw new Error(`the helper's answer is ${choices[0].message.content}`);
}

function tell(answer, calls, finish, usage) {
  answer.calls = (calls ?? []).map((c) => ({ id: c.id, name: c.function.name, arguments: c.function.arguments }));
  answer.finish = finish;
  answer.in = usage?.prompt_tokens ?? 0;
  answer.out = usage?.completion_tokens ?? 0;
}

const reasoning = (said) => said.reasoning_content ?? said.reasoning ?? '';

function params(place, ask) {
  const p = { model: place.model, messages: ask.messages.map(message), ...ask.extra };
  if (ask.maxTokens) p.max_tokens = ask.maxTokens;
  if (ask.stop) p.stop = [ask.stop];
  if (ask.tools) {
    p.tools = [{ type: 'function', function: { name: weather.name, description: weather.description, parameters: weather.schema } }];
  }
  return p;
}

function message(m) {
  if (m.role === 'tool') return { role: 'tool', tool_call_id: m.callId, content: m.text };
  if (m.image) {
    const url = 'data:image/png;base64,' + m.image;
    return { role: m.role, content: [{ type: 'text', text: m.text }, { type: 'image_url', image_url: { url } }] };
  }
  if (!m.calls) return { role: m.role, content: m.text };
  const calls = m.calls.map((c) => ({ id: c.id, type: 'function', function: { name: c.name, arguments: c.arguments } }));
  return { role: m.role, content: m.text || null, tool_calls: calls };
}

async function response(client, place, ask, answer, piece) {
  const p = { model: place.model, input: ask.messages[0].text };
  let r;
  if (ask.stream) {
    for await (const event of await client.responses.create({ ...p, stream: true })) {
      piece(event);
      if (event.type === 'response.output_text.delta') answer.text += event.delta;
      r = event.response;
    }
  } else {
    r = await client.responses.create(p);
    piece(r);
    answer.text = r.output_text;
  }
  Object.assign(answer, { finish: r.status, in: r.usage.input_tokens, out: r.usage.output_tokens });
}

export const openai = { 'npm openai': run };
