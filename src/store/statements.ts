import type { Database, Statement } from 'better-sqlite3';

/** A connection whose statements are prepared once, on first use. */
export class Statements {
  readonly #database: Database;
  readonly #prepared = new Map<string, Statement>();

  constructor(database: Database) {
    this.#database = database;
  }

  protected sql(text: string): Statement {
    let statement = this.#prepared.get(text);
    if (statement === undefined) {
      statement = this.#database.prepare(text);
      this.#prepared.set(text, statement);
    }
    return statement;
  }
}
