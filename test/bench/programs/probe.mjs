// Loaded before the server where a row must look into the process: a CPU profile of the measured stretch only, or the heap after
// a collection. It costs nothing until it is asked.
import { Session } from 'node:inspector/promises';
import { onCommands } from './parent.mjs';

let session;

async function post(method, params) {
  if (session === undefined) {
    session = new Session();
    session.connect();
  }
  return session.post(method, params);
}

onCommands({
  async startProfile() {
    await post('Profiler.enable');
    await post('Profiler.setSamplingInterval', { interval: 500 });
    await post('Profiler.start');
  },
  async stopProfile() {
    return (await post('Profiler.stop')).profile;
  },
  async heap() {
    for (let round = 0; round < 3; round += 1) await post('HeapProfiler.collectGarbage');
    return process.memoryUsage();
  },
});
// The channel must not keep a process alive that wants to end.
process.channel?.unref();
