import { ChatAnthropic } from '@langchain/anthropic';
import { AIMessage, HumanMessage, SystemMessage, ToolMessage } from '@langchain/core/messages';
import { tool } from '@langchain/core/tools';
import { ChatOllama, OllamaEmbeddings } from '@langchain/ollama';
import { ChatOpenAI, OpenAIEmbeddings } from '@langchain/openai';
import { toolNames, weather } from './failure.mjs';

const get_weather = tool(() => '', { name: weather.name, description: weather.description, schema: weather.schema });

const models = {
  openai: (place, ask) =>
    new ChatOpenAI({
      ...{ model: place.model, apiKey: place.key, configuration: { baseURL: place.base + '/v1' }, maxRetries: 0 },
      ...{ maxTokens: ask.maxTokens, modelKwargs: ask.extra ?? {} },
    }),
  anthropic: (place, ask) =>
    new ChatAnthropic({
      ...{ model: place.model, apiKey: place.key, anthropicApiUrl: place.base, maxRetries: 0 },
      ...{ maxTokens: ask.maxTokens, invocationKwargs: ask.extra ?? {} },
      ...(ask.think && { thinking: { type: 'enabled', budget_tokens: 1024 } }),
    }),
  ollama: (place, ask) =>
    new ChatOllama({
      ...{ model: place.model, baseUrl: place.base, headers: { Authorization: `Bearer ${place.key}` }, maxRetries: 0 },
      ...{ numPredict: ask.maxTokens, ...(ask.think && { think: true }), ...ask.extra },
    }),
};

const embeddings = {
  openai: (place) => new OpenAIEmbeddings({ model: place.model, apiKey: place.key, configuration: { baseURL: place.base + '/v1' }, maxRetries: 0 }),
  ollama: (place) => new OllamaEmbeddings({ model: place.model, baseUrl: place.base, headers: { Authorization: `Bearer ${place.key}` }, maxRetries: 0 }),
};

const run = (api) => async (place, ask, answer, piece, signal) => {
  if (ask.kind === 'embed') {
    answer.vector = await embeddings[api](place).embedQuery(ask.messages[0].text);
    return;
  }
  let model = models[api](place, ask);
  const { client } = model;
  // ChatOllama's stream ends with the signal, but its request goes on until its client is told.
  if (api === 'ollama') signal.addEventListener('abort', () => client.abort());
  if (ask.tools) model = model.bindTools([get_weather]);
  const names = toolNames(ask.messages);
  const messages = ask.messages.map((m) => message(m, names));
  const options = { signal, ...(ask.stop && { stop: [ask.stop] }) };
  let said;
  if (ask.stream) {
    for await (const chunk of await model.stream(messages, options)) {
      piece(plain(chunk));
      said = said ? said.concat(chunk) : chunk;
    }
  } else {
    said = await model.invoke(messages, options);
    piece(plain(said));
  }
  tell(answer, said);
};

// plain is all that a message has.
function plain(m) {
  return {
    ...{ type: m.getType(), id: m.id, content: m.content, additional: m.additional_kwargs, metadata: m.response_metadata },
    ...{ calls: m.tool_calls, invalid: m.invalid_tool_calls, pieces: m.tool_call_chunks, usage: m.usage_metadata },
  };
}

function tell(answer, said) {
  const blocks = typeof said.content === 'string' ? [{ type: 'text', text: said.content }] : said.content;
  for (const block of blocks) {
    if (block.type === 'text') answer.text += block.text;
    if (block.type === 'thinking') answer.reasoning += block.thinking ?? '';
  }
  answer.reasoning += said.additional_kwargs.reasoning_content ?? said.additional_kwargs.reasoning ?? '';
  answer.calls = said.tool_calls.map((c) => ({ id: c.id ?? '', name: c.name, arguments: JSON.stringify(c.args) }));
  const meta = said.response_metadata;
  answer.finish = meta.finish_reason ?? meta.stop_reason ?? meta.done_reason ?? said.additional_kwargs.stop_reason ?? '';
  answer.in = said.usage_metadata?.input_tokens ?? 0;
  answer.out = said.usage_metadata?.output_tokens ?? 0;
}

function message(m, names) {
  if (m.role === 'system') return new SystemMessage(m.text);
  if (m.role === 'tool') return new ToolMessage({ content: m.text, tool_call_id: m.callId, name: names[m.callId] });
  if (m.role === 'assistant') {
    const tool_calls = (m.calls ?? []).map((c) => ({ id: c.id, name: c.name, args: JSON.parse(c.arguments), type: 'tool_call' }));
    return new AIMessage({ content: m.text, tool_calls });
  }
  if (!m.image) return new HumanMessage(m.text);
  const url = 'data:image/png;base64,' + m.image;
  return new HumanMessage({ content: [{ type: 'text', text: m.text }, { type: 'image_url', image_url: { url } }] });
}

export const langchain = {
  'npm @langchain/openai': run('openai'),
  'npm @langchain/anthropic': run('anthropic'),
  'npm @langchain/ollama': run('ollama'),
};
