import { AppError } from '../errors.js';

/** A model id that names no provider, no model, or a provider that is not configured. */
export class UnknownModelError extends AppError {
  readonly code = 'unknown_model';
  readonly status = 422;
  readonly title = 'Unknown model';

  /** @param reason a sentence that says what is wrong with the id and what would be right */
  constructor(modelId: string, reason: string) {
    super({ detail: `There is no model ${JSON.stringify(modelId)}: ${reason}`, extensions: { model: modelId } });
  }
}
