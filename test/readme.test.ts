import { execFile } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { RUN_TRANSITIONS } from '../src/agent/run.js';
import { RunErrorCodeSchema } from '../src/agent/run-errors.js';
import { environmentExample } from '../src/config.js';
import { ERROR_CATALOGUE } from '../src/http/error-catalogue.js';
import { ServerProcess, stopAll } from './support/server-process.js';
import { temporaryFolder } from './support/wait.js';

const root = fileURLToPath(new URL('..', import.meta.url));
const readme = readFileSync(join(root, 'README.md'), 'utf8');

interface Block {
  readonly language: string;
  readonly text: string;
  readonly line: number;
}

const blocks: readonly Block[] = [...readme.matchAll(/^```(\w+)\n([\s\S]*?)^```$/gm)].map(
  ({ 1: language = '', 2: text = '', index }) => ({ language, text, line: readme.slice(0, index).split('\n').length }),
);
const isCurl = ({ language, text }: Block): boolean => language === 'sh' && text.includes('curl ');

/** A block of requests, with the answer that the page shows after it. */
const requests = blocks.flatMap((block, at) => {
  const next = blocks[at + 1];
  const answer = next !== undefined && /^(json|text)$/.test(next.language) ? next : undefined;
  return isCurl(block) ? [{ block, answer }] : [];
});

/** JSON with `…` in it: as a value it stands for any, at the end of an object or list for whatever else is there. */
function parseAbridged(text: string): unknown {
  const whole = text
    .replace(/(?<=[:]\s*)…/g, '"…"')
    .replace(/(?<=[[,]\s*)…(?=\s*\])/g, '"…"')
    .replace(/(?<=[{,]\s*)…(?=\s*\})/g, '"…": "…"');
  return JSON.parse(whole) as unknown;
}

function pattern(text: string): RegExp {
  const lines = text.split('\n').map((line) => line.replace(/[.*+?^${}()|[\]\\]/g, '\\$&').replaceAll('…', '.*'));
  const any = lines.map((line) => (line === '.*' ? '[\\s\\S]*' : line)).join('\n');
  return new RegExp(`^${any}$`);
}

/** The actual answer, abridged like the expected one: equal to it exactly when the page tells the truth. */
function abridged(actual: unknown, expected: unknown): unknown {
  if (expected === '…') return actual === undefined ? undefined : expected;
  if (typeof expected === 'string' && typeof actual === 'string')
    return pattern(expected).test(actual) ? expected : actual;
  if (Array.isArray(expected) && Array.isArray(actual)) {
    const open = expected.at(-1) === '…';
    const shown = open ? actual.slice(0, expected.length - 1) : actual;
    return [...shown.map((item, at) => abridged(item, expected[at])), ...(open ? ['…'] : [])];
  }
  if (!isRecord(expected) || !isRecord(actual)) return actual;
  const open = '…' in expected;
  const shown = Object.entries(actual).filter(([name]) => !open || name in expected);
  return {
    ...Object.fromEntries(shown.map(([name, value]) => [name, abridged(value, expected[name])])),
    ...(open ? { '…': '…' } : {}),
  };
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** What stands after a mark `<!-- checked: NAME -->`, to the next blank line. */
function checkedPart(name: string): string {
  return new RegExp(`<!-- checked: ${name} -->\n\n([\\s\\S]*?)\n\n`).exec(readme)?.[1] ?? '';
}

function settings(): { readonly name: string; readonly meaning: string; readonly fallback: string }[] {
  return [...environmentExample().matchAll(/^# (.*)\n#?(\w+)=(.*)$/gm)].map(
    ({ 1: meaning = '', 2: name = '', 3: fallback = '' }) => ({ name, meaning, fallback }),
  );
}

describe('what the README shows of a server', () => {
  let server: ServerProcess;
  let outputs: readonly string[] = [];

  beforeAll(async () => {
    const folder = temporaryFolder('readme-');
    mkdirSync(join(folder, 'my-shims'));
    for (const { language, text } of blocks) {
      const file = /^\/\/ (my-shims\/\S+)\n/.exec(text)?.[1];
      if (language === 'ts' && file !== undefined) writeFileSync(join(folder, file), text);
    }
    server = await ServerProcess.start({ shimsDir: join(folder, 'my-shims') });
    const mark = '\x1e';
    const script = requests.map(({ block }) => `${block.text}\nprintf '${mark}'`).join('\n');
    const { stdout } = await promisify(execFile)('bash', [
      '-euo',
      'pipefail',
      '-c',
      script.replaceAll('localhost:8080', new URL(server.url).host),
    ]);
    outputs = stdout.split(mark).slice(0, -1);
  });
  afterAll(stopAll);

  it('runs every block of requests', () => {
    expect(outputs).toHaveLength(requests.length);
  });

  it.each(requests.map(({ block, answer }, at) => ({ line: block.line, answer, at })))(
    'gives the answer of line $line',
    ({ answer, at }) => {
      const output = outputs[at] ?? '';
      if (answer === undefined) expect(output).not.toContain('urn:shimline:error');
      else if (answer.language === 'text') expect(output.trimEnd()).toMatch(pattern(answer.text.trimEnd()));
      else {
        const expected = parseAbridged(answer.text);
        expect(abridged(JSON.parse(output), expected)).toEqual(expected);
      }
    },
  );

  it('asks each route of the OpenAPI document, and gets no 5xx', async () => {
    const openapi = (await server.json('GET', '/openapi.json')).body as {
      readonly paths: Readonly<Record<string, Readonly<Record<string, unknown>>>>;
    };
    const documented = Object.entries(openapi.paths).flatMap(([path, methods]) =>
      Object.keys(methods).map((method) => `${method.toUpperCase()} ${path.replace(/\{(\w+)\}/g, ':$1')}`),
    );
    const metrics = await (await server.fetch('/metrics')).text();
    const counted = [...metrics.matchAll(/_count\{method="(\w+)",route="([^"]+)",status="(\d+)"\}/g)];
    const asked = new Set(counted.map(([, method = '', route = '']) => `${method} ${route}`));
    expect(documented.filter((route) => !asked.has(route))).toEqual([]);
    expect(counted.filter(([, , , status = '']) => status.startsWith('5'))).toEqual([]);
  });

  it('lists the shims that come with it', async () => {
    const { data } = (await server.json('GET', '/v1/shims')).body as {
      readonly data: readonly { readonly name: string; readonly file: string; readonly description: string }[];
    };
    const own = data.filter(({ file }) => !file.includes('my-shims'));
    const rows = own.map(({ name, description }) => `| \`${name}\` | ${description} |`);
    expect(checkedPart('shims')).toBe(['| name | |', '|---|---|', ...rows].join('\n'));
  });

  it('loads the agent file', async () => {
    const { text = '' } = blocks.find(({ language }) => language === 'md') ?? {};
    const folder = temporaryFolder('agents-');
    writeFileSync(join(folder, 'nurse.md'), text);
    const second = await ServerProcess.start({ agents: folder });
    expect((await second.json('GET', '/v1/agents/nurse')).body).toMatchObject({
      name: 'nurse',
      instructions: { template: 'You are a nurse on ward {{ ward }}.', values: { ward: '3B' } },
      source: 'file',
    });
  });
});

describe('what the README says of the code', () => {
  it('has the settings of the schema', () => {
    const rows = settings().map(
      ({ name, fallback, meaning }) => `| \`${name}\` | ${fallback === '' ? '' : `\`${fallback}\``} | ${meaning} |`,
    );
    expect(checkedPart('settings')).toBe(['| name | default | |', '|---|---|---|', ...rows].join('\n'));
  });

  it('has the table of statuses', () => {
    const [section = ''] = /^## A run's life$[\s\S]*?^## /m.exec(readme) ?? [];
    const rows = [...section.matchAll(/^\| `(\w+)` \| ((?:`\w+`(?:, )?)+) \| .+ \|$/gm)].map(
      ([, status = '', next = '']) => [status, next.match(/\w+/g)] as const,
    );
    expect(Object.fromEntries(rows)).toEqual(RUN_TRANSITIONS);
  });

  it('has every code of an error', () => {
    const statuses = [...new Set(ERROR_CATALOGUE.map(({ status }) => status))].sort((a, b) => a - b);
    const rows = statuses.map((status) => {
      const codes = ERROR_CATALOGUE.filter((error) => error.status === status).map(({ code }) => `\`${code}\``);
      return `| ${status} | ${codes.join(' ')} |`;
    });
    expect(checkedPart('errors')).toBe(['| status | code |', '|---|---|', ...rows].join('\n'));
    expect(checkedPart('run errors')).toBe(RunErrorCodeSchema.options.map((code) => `\`${code}\``).join(' '));
  });

  it('names files that are there, and every folder of src', () => {
    const { text = '' } = blocks.find((block) => block.text.startsWith('src/server.ts')) ?? {};
    const paths = text.split('\n').flatMap((line) => /^\S+/.exec(line)?.[0] ?? []);
    const links = [...readme.matchAll(/\]\((?!#|https?:)([^)]+)\)/g)].map(([, path = '']) => path);
    expect([...paths, ...links].filter((path) => !existsSync(join(root, path)))).toEqual([]);
    const folders = readdirSync(join(root, 'src'), { withFileTypes: true }).filter((entry) => entry.isDirectory());
    expect(folders.map(({ name }) => `src/${name}/`).filter((path) => !paths.includes(path))).toEqual([]);
  });

  it('has headings where its links lead', () => {
    const anchors = [...readme.matchAll(/^#+ (.*)$/gm)].map(([, heading = '']) =>
      heading
        .toLowerCase()
        .replace(/[^\w\- ]/g, '')
        .replaceAll(' ', '-'),
    );
    const links = [...readme.matchAll(/\]\(#([^)]+)\)/g)].map(([, anchor = '']) => anchor);
    expect(links.filter((anchor) => !anchors.includes(anchor))).toEqual([]);
  });

  it('has no command but those of the package and Docker, with settings that there are', () => {
    const { scripts } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
      readonly scripts: Readonly<Record<string, string>>;
    };
    const names = new Set(settings().map(({ name }) => name));
    const commands = blocks
      .filter((block) => block.language === 'sh' && !isCurl(block))
      .flatMap(({ text }) => text.split('\n'))
      .map((line) => line.replace(/#.*/, '').trim())
      .filter((line) => line !== '');
    const faults = commands.filter((line) => {
      const parts = line.split(' && ').map((part) => part.replace(/^(?:[A-Z_]+=\S+ )*/, ''));
      const known = parts.every((part) => {
        const [, script] = /^npm (?:run )?(\S+)/.exec(part) ?? [];
        return /^docker (build|run|exec) /.test(part) || script === 'ci' || (script !== undefined && script in scripts);
      });
      const set = [...line.matchAll(/(?:^|\s)([A-Z_]{3,})=/g)].map(([, name = '']) => name);
      return !known || !set.every((name) => names.has(name));
    });
    expect(faults).toEqual([]);
  });
});
