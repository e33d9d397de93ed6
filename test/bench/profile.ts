import { relative } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('../..', import.meta.url));

/** What the inspector calls a `Profiler.Profile`: a tree of frames, and which one each sample was in. */
export interface CpuProfile {
  readonly nodes: readonly {
    readonly id: number;
    readonly callFrame: { readonly functionName: string; readonly url: string; readonly lineNumber: number };
    readonly children?: readonly number[];
  }[];
  readonly samples: readonly number[];
  readonly timeDeltas: readonly number[];
}

export interface ProfileLine {
  readonly name: string;
  readonly selfMs: number;
  readonly totalMs: number;
}

/** Where the time goes: by function, and by group of functions. Idle time is left out. */
export interface ProfileFigures {
  readonly busyMs: number;
  readonly functions: readonly ProfileLine[];
  readonly groups: readonly ProfileLine[];
}

interface Frame {
  readonly name: string;
  readonly group: string;
  selfUs: number;
  readonly children: readonly number[];
}

/** Self time, and the time with everything called; a function that calls itself is counted once. */
export function figuresOf(
  profile: CpuProfile,
  grouped: (frame: { readonly functionName: string; readonly place: string }) => string = groupOf,
): ProfileFigures {
  const frames = new Map<number, Frame>();
  for (const { id, callFrame, children = [] } of profile.nodes) {
    const place = placeOf(callFrame.url);
    const name = `${callFrame.functionName || '(anonymous)'}  ${place === '' ? '' : `${place}:${callFrame.lineNumber + 1}`}`;
    frames.set(id, {
      name: name.trim(),
      group: grouped({ functionName: callFrame.functionName, place }),
      selfUs: 0,
      children,
    });
  }
  profile.samples.forEach((id, index) => {
    const frame = frames.get(id);
    if (frame !== undefined) frame.selfUs += Math.max(0, profile.timeDeltas[index] ?? 0);
  });
  const byFunction = new Sums();
  const byGroup = new Sums();
  const walk = (id: number, functions: ReadonlySet<string>, groups: ReadonlySet<string>): number => {
    const frame = frames.get(id);
    // Neither waiting nor the profiling itself is work.
    if (frame === undefined || frame.name === '(idle)' || frame.name.includes('node:inspector')) return 0;
    const { name, group, selfUs, children } = frame;
    const innerFunctions = functions.has(name) ? functions : new Set([...functions, name]);
    const innerGroups = groups.has(group) ? groups : new Set([...groups, group]);
    let totalUs = selfUs;
    for (const child of children) totalUs += walk(child, innerFunctions, innerGroups);
    byFunction.add(name, selfUs, functions.has(name) ? 0 : totalUs);
    byGroup.add(group, selfUs, groups.has(group) ? 0 : totalUs);
    return totalUs;
  };
  const first = profile.nodes[0];
  const busyUs = first === undefined ? 0 : walk(first.id, new Set(), new Set());
  return { busyMs: busyUs / 1000, functions: byFunction.lines(), groups: byGroup.lines() };
}

class Sums {
  readonly #sums = new Map<string, { selfUs: number; totalUs: number }>();

  add(name: string, selfUs: number, totalUs: number): void {
    const known = this.#sums.get(name);
    if (known === undefined) this.#sums.set(name, { selfUs, totalUs });
    else {
      known.selfUs += selfUs;
      known.totalUs += totalUs;
    }
  }

  lines(): ProfileLine[] {
    return [...this.#sums]
      .map(([name, { selfUs, totalUs }]) => ({ name, selfMs: selfUs / 1000, totalMs: totalUs / 1000 }))
      .sort((a, b) => b.selfMs - a.selfMs);
  }
}

/** Our file below `src`, or the package, or Node's module. */
function placeOf(url: string): string {
  if (url === '' || url.startsWith('node:')) return url;
  const path = url.startsWith('file:') ? fileURLToPath(url) : url;
  const inPackage = /.*node_modules\/(.*)$/.exec(path)?.[1];
  return inPackage ?? relative(root, path).replace(/^dist\//, '');
}

const NODE_GROUPS: readonly (readonly [RegExp, string])[] = [
  [/http|net|stream_base|tls|_tls|dns/, 'Node: HTTP and sockets'],
  [/webstreams/, 'Node: web streams'],
  [/streams|_stream|stream/, 'Node: streams'],
  [/timers|task_queues|async_hooks|process/, 'Node: timers, ticks, promises'],
  [/abort|event_target|events/, 'Node: events and signals'],
];

function groupOf({ functionName, place }: { readonly functionName: string; readonly place: string }): string {
  if (place === '') return functionName.startsWith('(') ? functionName : `built-in`;
  if (place.startsWith('node:')) return NODE_GROUPS.find(([pattern]) => pattern.test(place))?.[1] ?? 'Node: other';
  const ours = /^src\/([^/]+)\//.exec(place)?.[1];
  if (ours !== undefined) return `ours: ${ours}/`;
  if (place.startsWith('src/') || place.startsWith('shims/') || place.startsWith('test/'))
    return 'ours: entry and shims';
  const name = /^(@[^/]+\/[^/]+|[^/]+)/.exec(place)?.[1] ?? place;
  return `package: ${name}`;
}

/** Both tables as text. `runs` were served meanwhile. */
export function profileText(figures: ProfileFigures, runs: number, lines = 70): string {
  const line = ({ name, selfMs, totalMs }: ProfileLine): string =>
    [
      ((selfMs / figures.busyMs) * 100).toFixed(1).padStart(6),
      ((selfMs / runs) * 1000).toFixed(0).padStart(8),
      ((totalMs / figures.busyMs) * 100).toFixed(1).padStart(7),
      ((totalMs / runs) * 1000).toFixed(0).padStart(8),
      ` ${name}`,
    ].join(' ');
  const head = 'self %  us/run  total %  us/run  ';
  const byTotal = figures.functions.filter(({ name }) => /src\/|better-sqlite3|@ai-sdk|undici|fastify/.test(name));
  return [
    `main thread busy ${figures.busyMs.toFixed(0)} ms, ${runs} runs, ${(figures.busyMs / runs).toFixed(3)} ms a run`,
    `\n${head}group`,
    ...figures.groups.slice(0, 40).map(line),
    `\n${head}function, by self time`,
    ...figures.functions.slice(0, lines).map(line),
    `\n${head}function of ours or of a package, by time with all that it calls`,
    ...byTotal
      .sort((a, b) => b.totalMs - a.totalMs)
      .slice(0, lines)
      .map(line),
    '',
  ].join('\n');
}
