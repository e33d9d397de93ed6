import { defineTool, type JsonValue, type Tool, toolFailure, z } from 'shimline/shims';
import { type CommandEnd, runCommand } from './command.js';
import { openFolder } from './files.js';
import { operationsOf } from './operations.js';
import { answered } from './refusal.js';
import { HeadAndTail, headOf, withoutNul } from './text.js';
import type { Workspace } from './workspace.js';

/** Beyond what a command may take, for ending it: the seam's own limit must not come first. */
const MARGIN_MS = 10_000;

export function bashTool(workspace: Workspace, name: string): Tool {
  const { bash, maxChars } = workspace.config;
  const { maxTimeoutMs } = bash;
  const parameters = z.object({
    command: withoutNul(z.string().min(1).max(100_000)).meta({ description: 'What bash -c is to run.' }),
    cwd: z.string().min(1).default('.').meta({ description: 'The folder of the workspace to run it in.' }),
    timeoutMs: z
      .int()
      .positive()
      .max(maxTimeoutMs)
      .default(Math.min(bash.timeoutMs, maxTimeoutMs))
      .meta({ description: 'Milliseconds after which it is ended.' }),
  });
  return defineTool({
    name,
    operations: operationsOf('bash'),
    description:
      'Runs a command with bash in the workspace and answers what it printed, stdout and stderr together. Nobody can type anything in. What it leaves in the background is ended with it.',
    parameters,
    maxRetries: 0,
    timeoutMs: maxTimeoutMs + MARGIN_MS,
    execute: async ({ command, cwd, timeoutMs }, context) =>
      answered(cwd, async () => {
        const place = workspace.root.resolve(cwd);
        workspace.permit({ operation: 'bash:execute_command', command }, context);
        await openFolder(workspace, place);
        const output = new HeadAndTail(maxChars);
        const progress = new ProgressStream((data) => {
          context.progress(data);
        });
        let end: CommandEnd;
        try {
          end = await runCommand({
            command,
            cwd: place.real,
            config: bash,
            timeoutMs,
            signal: context.signal,
            onOutput: (stream, text) => {
              output.push(text);
              progress.push(stream, text);
            },
          });
        } finally {
          progress.end();
        }
        return answerOf(end, output.toString(), timeoutMs);
      }),
  });
}

function answerOf({ how, exitCode, signalName, leftBehind }: CommandEnd, output: string, timeoutMs: number): unknown {
  const printed = output === '' ? '[It printed nothing.]' : output.replace(/\n$/, '');
  const note = leftBehind && how === 'exited' ? '\n[Processes that it left in the background were ended.]' : '';
  switch (how) {
    case 'timeout':
      return toolFailure(`The command was ended after ${timeoutMs} ms; it had not finished.\n${printed}`, {
        kind: 'timeout',
      });
    case 'too_much_output':
      return toolFailure(`The command was ended, since it printed without end.\n${printed}`, {
        kind: 'too_much_output',
      });
    case 'exited':
      if (exitCode === 0) return printed + note;
      return toolFailure(
        `${exitCode === null ? `Ended by ${signalName ?? 'a signal'}` : `Exit code ${exitCode}`}.\n${printed}${note}`,
        {
          kind: 'exit_code',
        },
      );
  }
}

const PROGRESS_EVERY_MS = 100;
/** Each piece of progress is an event on disk: the end of a long output is in the result. */
const MOST_PROGRESS_CHARS = 100_000;

/** Output as `tool.progress`, some of it at a time. */
class ProgressStream {
  readonly #send: (data: JsonValue) => void;
  #pending: { readonly stream: string; text: string }[] = [];
  #left = MOST_PROGRESS_CHARS;
  #cut = false;
  #timer: NodeJS.Timeout | undefined;

  constructor(send: (data: JsonValue) => void) {
    this.#send = send;
  }

  push(stream: string, text: string): void {
    const kept = headOf(text, this.#left);
    this.#left = kept.length < text.length ? 0 : this.#left - kept.length;
    this.#cut ||= kept.length < text.length;
    if (kept === '') return;
    const last = this.#pending.at(-1);
    if (last?.stream === stream) last.text += kept;
    else this.#pending.push({ stream, text: kept });
    this.#timer ??= setTimeout(() => {
      this.#flush();
    }, PROGRESS_EVERY_MS);
  }

  end(): void {
    this.#flush();
    if (this.#cut) this.#send({ note: 'There was more output than is streamed.' });
  }

  #flush(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    for (const { stream, text } of this.#pending) this.#send({ stream, text });
    this.#pending = [];
  }
}
