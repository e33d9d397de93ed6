import type { ToolContext } from 'shimline/shims';
import type { WorkspaceConfig } from './config.js';
import { type Operation, operationOf, type ToolName } from './operations.js';
import type { Place, Root } from './paths.js';
import type { Judge, Subject, Verdict } from './policy.js';
import { Refusal } from './refusal.js';
import type { Entry } from './walk.js';

/** A root with what may be done in it: what all tools share. */
export class Workspace {
  readonly root: Root;
  readonly config: WorkspaceConfig;
  readonly #judge: Judge;

  constructor(root: Root, config: WorkspaceConfig, judge: Judge) {
    this.root = root;
    this.config = config;
    this.#judge = judge;
  }

  /**
   * Whether a call may do what it does; asked when it is done, as its arguments, or the files, may not be those of the time when a
   * person was asked.
   * @throws Refusal
   */
  permit(subject: Subject, { approved }: Pick<ToolContext, 'approved'>): Verdict {
    const verdict = this.#judge.judge(subject);
    const what = subject.command === undefined ? `${subject.operation} of ${subject.shown ?? '.'}` : subject.operation;
    const why = verdict.message === undefined ? '' : ` ${verdict.message}`;
    switch (verdict.action) {
      case 'allow':
        return verdict;
      case 'ask':
        if (approved) return verdict;
        throw new Refusal(
          'needs_approval',
          `A person must approve ${what}, and was not asked, since the call was another one when it was made. Make it again.${why}`,
        );
      case 'deny':
        throw new Refusal('denied', `The policy of this workspace denies ${what}.${why}`);
    }
  }

  permitPlace(operation: Operation, { shown, written }: Place, context: Pick<ToolContext, 'approved'>): Verdict {
    return this.permit({ operation, shown, written }, context);
  }

  /** Whether something that a call comes across may be seen: what is allowed, and what the approval of the call was for. */
  seen(operation: Operation, given: Verdict): (entry: Pick<Entry, 'path'>) => boolean {
    return ({ path }) => {
      const { action, source } = this.#judge.judge({ operation, shown: path });
      return action === 'allow' || (action === 'ask' && given.action === 'ask' && source === given.source);
    };
  }

  /** Whether a place may be read without asking anybody. */
  isReadable({ shown, written }: Pick<Place, 'shown' | 'written'>): boolean {
    return this.#judge.judge({ operation: 'read', shown, written }).action === 'allow';
  }

  /** What the policy says of a call before it is run; undefined where the call will be refused anyway. */
  verdictOn(tool: ToolName, args: unknown): Verdict | undefined {
    try {
      const fields = typeof args === 'object' && args !== null ? (args as Readonly<Record<string, unknown>>) : {};
      if (tool === 'bash') {
        const { command } = fields;
        return typeof command === 'string'
          ? this.#judge.judge({ operation: 'bash:execute_command', command })
          : undefined;
      }
      const { path = '.' } = fields;
      if (typeof path !== 'string') return undefined;
      const { shown, written, exists } = this.root.resolve(path);
      return this.#judge.judge({ operation: operationOf(tool, () => exists), shown, written });
    } catch (error) {
      if (error instanceof Refusal) return undefined;
      throw error;
    }
  }

  /** Everything that a person may be asked by. */
  get questions(): Judge['questions'] {
    return this.#judge.questions;
  }
}
