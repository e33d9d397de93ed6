import { describe, expectTypeOf, it } from 'vitest';
import {
  BoundShim,
  DelegatingBoundShim,
  DelegatingShim,
  type Message,
  type ModelResponse,
  type PreparedTurn,
  type RunResult,
  type RunState,
  Shim,
  type ShimBindingContext,
} from '../../src/shims.js';

describe('a class that extends Shim', () => {
  it('needs a name', () => {
    // @ts-expect-error -- the name is missing
    class Nameless extends Shim {}
    class Numbered extends Shim {
      // @ts-expect-error -- the name is a text
      override readonly name = 1;
    }
    class Named extends Shim {
      override readonly name = 'named';
    }
    expectTypeOf(new Named()).toExtend<Shim>();
    void [Nameless, Numbered];
  });

  it('refuses a wrong callback signature', () => {
    class Wrong extends Shim {
      override readonly name = 'wrong';
      // @ts-expect-error -- prepareTurn gets the turn only
      override prepareTurn(_turn: PreparedTurn, _messages: Message[]): void {}
      // @ts-expect-error -- messages, or nothing
      override transformMessages(): string {
        return 'messages';
      }
      // @ts-expect-error -- a response, not a text
      override onModelResponse(_turn: PreparedTurn, _response: string): void {}
      // @ts-expect-error -- a result, not its text
      override onRunEnd(_result: string): void {}
      // @ts-expect-error -- there is no such callback
      override onTurnStart(): void {}
      // @ts-expect-error -- bind gives a session
      override bind(): string {
        return 'a session';
      }
    }
    void Wrong;
  });

  it('refuses a wrong use of the state', () => {
    class Writing extends Shim {
      override readonly name = 'writing';
      override onRunStart(state: RunState): void {
        state.shimState.set('writing', { visits: 1 });
        // @ts-expect-error -- JSON cannot hold a function
        state.shimState.set('writing', () => 1);
        // @ts-expect-error -- JSON cannot hold a Map
        state.shimState.set('writing', new Map());
        // @ts-expect-error -- the count is the runner's
        state.turnCount = 0;
        // @ts-expect-error -- responses are the runner's
        state.responses = [];
        // @ts-expect-error -- a sum is a number
        const sum: string = state.shimState.increment('writing:visits');
        void sum;
      }
      override prepareTurn(turn: PreparedTurn): void {
        expectTypeOf(turn.state).toBeUnknown();
        // @ts-expect-error -- a class without a schema has no typed state
        turn.state.visits = 1;
        // @ts-expect-error -- one tool is no list
        turn.addTools({ name: 'search' });
        // @ts-expect-error -- the count is the runner's
        turn.turnCount = 3;
      }
      override onModelResponse(_turn: PreparedTurn, response: ModelResponse): void {
        // @ts-expect-error -- a response is what the model said
        response.finishReason = 'stop';
      }
      override onRunEnd(result: RunResult | null): void {
        // @ts-expect-error -- it is null unless the run completed
        void result.finalOutput;
        // @ts-expect-error -- a result is frozen
        if (result !== null) result.turnCount = 1;
      }
    }
    void Writing;
  });

  it('may be asynchronous in every awaited callback', () => {
    class Patient extends Shim {
      override readonly name = 'patient';
      override async bind(context: ShimBindingContext): Promise<BoundShim> {
        return super.bind(context);
      }
      override async onRunStart(): Promise<void> {}
      override async prepareTurn(): Promise<void> {}
      override async transformMessages(_turn: PreparedTurn, messages: Message[]): Promise<Message[]> {
        return messages;
      }
      // @ts-expect-error -- a delta is shown at once
      override async transformDelta(): Promise<null> {
        return null;
      }
    }
    void Patient;
  });

  it('wraps another by its session or by its definition', () => {
    class Session extends DelegatingBoundShim {
      override prepareTurn(turn: PreparedTurn): void | Promise<void> {
        expectTypeOf(this.inner).toEqualTypeOf<BoundShim>();
        return super.prepareTurn(turn);
      }
    }
    class Definition extends DelegatingShim {
      override async bind(context: ShimBindingContext): Promise<BoundShim> {
        expectTypeOf(this.inner).toEqualTypeOf<Shim>();
        return new Session(await super.bind(context));
      }
    }
    // @ts-expect-error -- a definition wraps a definition
    void new Definition(new BoundShim());
    // @ts-expect-error -- a session wraps a session
    void new Session(new Definition(new Definition(null as unknown as Shim)));
  });
});
