// Reads requests as JSON lines, {id, client, place, ask}, makes them with the client of that name, and writes what the
// client told its caller, {id, answer}. The shapes are those of ask_test.go. It ends with its input.
import { createInterface } from 'node:readline';
import { ai } from './ai.mjs';
import { anthropic } from './anthropic.mjs';
import { failure } from './failure.mjs';
import { langchain } from './langchain.mjs';
import { ollama } from './ollama.mjs';
import { openai } from './openai.mjs';

const clients = { ...openai, ...anthropic, ...ollama, ...ai, ...langchain };

// talk never fails: what a client throws is a part of the answer, beside what it told before.
async function talk({ client, place, ask }) {
  const answer = { text: '', reasoning: '', calls: [], finish: '', in: 0, out: 0, names: [], vector: [], error: null, raw: [] };
  const leave = new AbortController();
  const piece = (value) => {
    answer.raw.push(value);
    if (answer.raw.length === ask.leave) leave.abort();
  };
  try {
    await clients[client](place, ask, answer, piece, leave.signal);
  } catch (error) {
    answer.error = failure(error);
  }
  return answer;
}

// A rejection that a client leaves to nobody would end the process; it belongs to no request.
process.on('unhandledRejection', (error) => console.error('unhandled rejection:', error));

for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line);
  talk(request).then((answer) => process.stdout.write(JSON.stringify({ id: request.id, answer }) + '\n'));
}
