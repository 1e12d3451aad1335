// failure is what a caller can read of an error that a client threw: its class, its status, what it says and the body of
// the answer as far as the client has it.
export function failure(error) {
  return {
    type: error?.constructor?.name ?? typeof error,
    status: error?.status ?? error?.statusCode ?? error?.status_code ?? error?.response?.status ?? 0,
    message: String(error?.message ?? error),
    body: error?.responseBody ?? error?.error ?? null,
  };
}

// weather is the tool of every request that has one.
export const weather = {
  name: 'get_weather',
  description: 'the weather of a city',
  schema: { type: 'object', required: ['city'], properties: { city: { type: 'string' }, unit: { type: 'string' } } },
};

// toolNames are the names of the calls in a conversation by their ids; some clients want them beside the answers.
export function toolNames(messages) {
  return Object.fromEntries(messages.flatMap((m) => m.calls ?? []).map((call) => [call.id, call.name]));
}
