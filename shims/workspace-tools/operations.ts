/** The tools of a workspace, in the order in which the model is given them. */
export const TOOL_NAMES = ['read', 'write', 'patch', 'find', 'grep', 'ls', 'bash'] as const;
export type ToolName = (typeof TOOL_NAMES)[number];

/** What a call does, as the policy knows it. */
export const OPERATIONS = [
  'read',
  'read:ls',
  'read:find',
  'read:grep',
  'write:create_file',
  'write:overwrite',
  'write:patch',
  'bash:execute_command',
] as const;
export type Operation = (typeof OPERATIONS)[number];

/** What a rule may name: an operation, a family of them, or all. */
export const OPERATION_NAMES = [...OPERATIONS, 'write', 'bash', '*'] as const;
export type OperationName = (typeof OPERATION_NAMES)[number];

/** What the calls of a tool may do. */
export function operationsOf(tool: ToolName): readonly Operation[] {
  return [...new Set([operationOf(tool, () => false), operationOf(tool, () => true)])];
}

/** The operations that have one default of the policy. */
export type Family = 'read' | 'write' | 'bash';

export function familyOf(operation: Operation): Family {
  return operation.split(':', 1)[0] as Family;
}

/** Whether a name of a rule covers an operation: `read` covers `read:grep`, `*` covers all. */
export function covers(name: OperationName, operation: Operation): boolean {
  return name === '*' || name === operation || operation.startsWith(`${name}:`);
}

/**
 * The operation of a call. Only writing depends on more than the name: on whether there is a file at that path.
 *
 * @param tool the tool's name without the config's prefix
 * @param exists asked for `write` only
 */
export function operationOf(tool: ToolName, exists: () => boolean): Operation {
  switch (tool) {
    case 'read':
      return 'read';
    case 'ls':
    case 'find':
    case 'grep':
      return `read:${tool}`;
    case 'write':
      return exists() ? 'write:overwrite' : 'write:create_file';
    case 'patch':
      return 'write:patch';
    case 'bash':
      return 'bash:execute_command';
  }
}
