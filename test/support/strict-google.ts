import { isObject, type JsonObject } from './json-path.js';
import { type CheckedRequest, checkToolName, isBlank, objectsOf, refuse } from './strict-checks.js';

/** Refuses what Gemini refuses: roles, empty parts, and calls that are not answered in the next turn. */
export function checkGenerateContent({ body }: CheckedRequest): void {
  for (const tool of objectsOf(body.tools)) {
    const names = new Set<string>();
    for (const declaration of objectsOf(tool.functionDeclarations)) {
      const { name } = declaration;
      checkToolName(name, 'tools.function_declarations.name');
      if (names.has(name)) refuse(`Duplicate function declaration found: ${name}`);
      names.add(name);
    }
  }
  const contents = objectsOf(body.contents);
  if (contents.length === 0) refuse('* GenerateContentRequest.contents: contents is not specified');
  for (const [index, content] of contents.entries()) {
    checkContent(content, index);
    checkTurn(content, contents[index - 1], contents[index + 1]);
  }
}

function partsOf(content: JsonObject | undefined, kind: string): readonly JsonObject[] {
  return objectsOf(content?.parts).flatMap((part) => (isObject(part[kind]) ? [part[kind]] : []));
}

function checkContent(content: JsonObject, index: number): void {
  const { role } = content;
  if (role !== 'user' && role !== 'model') refuse('Please use a valid role: user, model.');
  const parts = objectsOf(content.parts);
  if (parts.length === 0) {
    refuse(`* GenerateContentRequest.contents[${index}].parts: contents.parts must not be empty.`);
  }
  const texts = parts.filter((part) => part.text !== undefined);
  if (texts.length === parts.length && texts.every((part) => isBlank(part.text))) {
    refuse(`Unable to submit request because contents[${index}] must include non-blank text.`);
  }
  for (const call of partsOf(content, 'functionCall')) {
    if (call.args !== undefined && !isObject(call.args)) refuse('function_call.args: expected an object');
  }
}

function checkTurn(content: JsonObject, before: JsonObject | undefined, after: JsonObject | undefined): void {
  const calls = partsOf(content, 'functionCall');
  const answers = partsOf(content, 'functionResponse');
  if (calls.length > 0 && partsOf(after, 'functionResponse').length !== calls.length) {
    const rule = 'the number of function response parts is equal to the number of function call parts';
    refuse(`Please ensure that ${rule} of the function call turn.`);
  }
  if (answers.length > 0) {
    const called = partsOf(before, 'functionCall').map((call) => call.name);
    if (called.length === 0 || answers.some((answer) => !called.includes(answer.name))) {
      refuse('Please ensure that function response turn comes immediately after a function call turn.');
    }
  }
}
