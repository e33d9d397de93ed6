import { type Decision, defineShim, type GatedCall, type PreparedTurn, type ToolOutcome, z } from 'shimline/shims';
import { type Consent, type ConsentOwner, findConsent, keepConsent } from './consents.js';
import { type ApprovalConfig, type Ask, configSchema, digestOf, Rules, type Verdict } from './rules.js';

const stateSchema = z.object({
  /** How often a call was denied since the last input, by tool and arguments. */
  denials: z.record(z.string(), z.object({ count: z.int(), reason: z.string() })).default({}),
  /** Decisions for the whole run. A fork has another id, so they do not count there. */
  grants: z
    .array(
      z.object({ runId: z.string(), grant: z.string(), decision: z.enum(['approve', 'deny']), reason: z.string() }),
    )
    .default([]),
  /** Calls of the open round that a person let through, with what was asked about them. */
  approved: z.array(z.object({ toolCallId: z.string(), grants: z.array(z.string()) })).default([]),
});
type Turn = PreparedTurn & { readonly state: z.output<typeof stateSchema> };

/** Rules by config: a definition serves many conversations, and its config never changes. */
const known = new WeakMap<ApprovalConfig, Rules>();

function rulesOf(config: ApprovalConfig): Rules {
  const made = known.get(config) ?? new Rules(config);
  known.set(config, made);
  return made;
}

/** The approval of one instance in one turn: what the rules and the people have said about its calls. */
class Guard {
  readonly #rules: Rules;
  readonly #config: ApprovalConfig;
  readonly #shim: string;
  readonly #turn: Turn;

  constructor({ name, config }: { readonly name: string; readonly config: ApprovalConfig }, turn: Turn) {
    this.#rules = rulesOf(config);
    this.#config = config;
    this.#shim = name;
    this.#turn = turn;
  }

  /** One gate per rule that asks, each with its own question: they hold for whichever tools the turn comes to have. */
  close(): void {
    const onDecision = (call: GatedCall, decision: Decision): void => {
      this.#remember(call, decision);
    };
    for (const { index, message, expiresInMs, scopes } of this.#rules.asking()) {
      this.#turn.requireApproval((call) => this.#open(call).some(({ rule }) => rule === index), {
        ...(message === undefined ? {} : { message }),
        ...(expiresInMs === undefined ? {} : { expiresInMs }),
        scopes,
        onDecision,
      });
    }
  }

  /** Why a call must not run; undefined when it may. */
  refusal(call: GatedCall): string | undefined {
    const verdict = this.#judge(call);
    if (verdict.action === 'allow') return undefined;
    if (verdict.action === 'deny') return `This call is not allowed and was not run${because(verdict.reason)}`;
    const approved = this.#turn.state.approved.find(({ toolCallId }) => toolCallId === call.toolCallId)?.grants ?? [];
    if (verdict.asks.every(({ grant }) => approved.includes(grant))) return undefined;
    const answered = this.#answered(call, verdict.asks);
    if (answered !== undefined) return answered;
    // Whatever led past the gate (arguments changed on the way, other rules since then): a person has not seen this call.
    const open = verdict.asks.filter(({ grant }) => this.#granted(grant)?.decision !== 'approve');
    return open.every(({ grant }) => approved.includes(grant))
      ? undefined
      : 'This call needs a person’s approval that it does not have, and was not run. Make it again to ask for it.';
  }

  /** What a person must still be asked about a call; what is refused anyway is not asked. */
  #open(call: GatedCall): readonly Ask[] {
    const verdict = this.#judge(call);
    if (verdict.action !== 'ask' || this.#answered(call, verdict.asks) !== undefined) return [];
    return verdict.asks.filter(({ grant }) => this.#granted(grant) === undefined);
  }

  #judge(call: GatedCall): Verdict {
    const { agent, key, metadata } = this.#turn;
    const tool = this.#turn.tools?.tools.find(({ name }) => name === call.name);
    // A condition must hold of the arguments as they are and with the tool's defaults: the strictest counts.
    const parsed = tool?.parse(call.arguments);
    const variants = parsed?.ok === true ? [call.arguments, parsed.args] : [call.arguments];
    return this.#rules.judge({ tool: call.name, operations: tool?.operations, variants, agent, key, metadata });
  }

  /** The answer to a call that people have said no to, for good or often enough. */
  #answered(call: GatedCall, asks: readonly Ask[]): string | undefined {
    for (const { grant } of asks) {
      const remembered = this.#granted(grant);
      if (remembered?.decision === 'deny')
        return `Calls like this one were denied, so this one was not run${because(remembered.reason)} Do not try it again.`;
    }
    const denial = this.#turn.state.denials[callDigest(call)];
    if (denial === undefined || denial.count < this.#config.maxDenials) return undefined;
    return `The same call was denied before, so it was not run and nobody was asked again${because(denial.reason)} Go on without it, or ask the user.`;
  }

  #granted(grant: string): Consent | undefined {
    const { runId, state } = this.#turn;
    const ofRun = state.grants.find((each) => each.runId === runId && each.grant === grant);
    return ofRun ?? findConsent(this.#owner, grant);
  }

  get #owner(): ConsentOwner {
    const { dataDir, agent, key } = this.#turn;
    return { dataDir, shim: this.#shim, agent, key };
  }

  #remember(call: GatedCall, decision: Decision): void {
    if (decision.decision === 'respond') return;
    const { state, runId } = this.#turn;
    const denied = decision.decision === 'deny';
    const reason = decision.decision === 'deny' ? (decision.reason ?? '') : '';
    const asked = this.#asks(call);
    // Of an edited call that is settled which the person was asked about; a rule that had not asked does so now.
    const settled =
      decision.decision === 'edit'
        ? this.#asks({ ...call, arguments: decision.arguments }).filter(({ rule }) =>
            asked.some((ask) => ask.rule === rule),
          )
        : asked;
    if (denied) {
      const count = (state.denials[callDigest(call)]?.count ?? 0) + 1;
      state.denials[callDigest(call)] = { count, reason };
    } else {
      const earlier = state.approved.find(({ toolCallId }) => toolCallId === call.toolCallId)?.grants ?? [];
      const others = state.approved.filter(({ toolCallId }) => toolCallId !== call.toolCallId);
      const grants = [...new Set([...earlier, ...settled.map(({ grant }) => grant)])];
      state.approved = [...others, { toolCallId: call.toolCallId, grants }];
    }
    const { scope = 'once' } = decision;
    if (scope === 'once') return;
    const kept: Consent = { decision: denied ? 'deny' : 'approve', reason };
    for (const { grant } of settled) {
      if (scope === 'agent') keepConsent(this.#owner, grant, call.name, kept);
      else state.grants = [...state.grants.filter((each) => each.grant !== grant), { runId, grant, ...kept }];
    }
  }

  #asks(call: GatedCall): readonly Ask[] {
    const verdict = this.#judge(call);
    return verdict.action === 'ask' ? verdict.asks : [];
  }
}

function callDigest({ name, arguments: args }: GatedCall): string {
  return digestOf([name, args]);
}

function because(reason: string | undefined): string {
  if (reason === undefined || reason === '') return '.';
  if (reason === 'expired') return ': nobody had answered in time.';
  return /[.!?]$/.test(reason) ? `: ${reason}` : `: ${reason}.`;
}

export default defineShim({
  name: 'approval',
  description: 'Decides by rules which tool calls run, which wait for a person, and which never run.',
  config: configSchema,
  state: stateSchema,
  // A guard: no delegation loses it, and its failures cannot be skipped.
  inherit: 'always',
  onRunStart(_state, _transientState, run) {
    // New input may change what people think of a call.
    if (!run.recovered && Object.keys(run.state.denials).length > 0) run.state.denials = {};
  },
  prepareTurn(turn) {
    if (turn.state.approved.length > 0) turn.state.approved = [];
    new Guard(this, turn).close();
  },
  async wrapToolCall(turn, call, next): Promise<ToolOutcome> {
    const message = new Guard(this, turn).refusal(call);
    return message === undefined ? next(call) : { ok: false, error: { message, kind: 'denied' } };
  },
});
