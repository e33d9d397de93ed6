import { z } from 'zod';
import { RunLimitsSchema } from './run.js';
import { PromptSpecSchema } from './template.js';

const AGENT_NAME_PATTERN = /^[a-zA-Z0-9][a-zA-Z0-9_-]{0,63}$/;

/** Tool settings of an agent; its tools come from shims (or, in code, from the agent itself). */
export const ToolSettingsSchema = z.strictObject({
  toolChoice: z
    .union([
      z.enum(['auto', 'none', 'required']),
      z.strictObject({ type: z.literal('tool'), toolName: z.string().min(1) }),
    ])
    .optional()
    .meta({ description: 'How the model may choose: auto, none, required, or one tool by name.' }),
  parallelToolCalls: z
    .union([z.boolean(), z.int().positive()])
    .optional()
    .meta({ description: 'How many calls of one round run at once: true (8), false (1), or a number.' }),
  toolCallTimeoutMs: z.int().positive().optional(),
  toolCallMaxRetries: z.int().nonnegative().optional(),
  toolCallLimits: z
    .record(z.string(), z.int().nonnegative())
    .optional()
    .meta({ description: 'Most calls per tool and run.' }),
  maxToolRoundTrips: z.int().nonnegative().optional(),
});
export type ToolSettings = z.infer<typeof ToolSettingsSchema>;

/** One entry of an agent's ordered shim list. */
export const ShimUseSchema = z.strictObject({
  use: z.string().min(1),
  as: z.string().min(1).max(64).optional(),
  config: z.record(z.string(), z.unknown()).optional(),
});
export type ShimUse = z.infer<typeof ShimUseSchema>;

/** The static definition of an agent, as saved. */
export const AgentDescriptorSchema = z.strictObject({
  name: z.string().regex(AGENT_NAME_PATTERN, 'letters, digits, _ and -, at most 64, beginning with a letter or digit'),
  description: z.string().max(4096).default(''),
  model: z.string().min(1),
  instructions: z.union([z.string(), PromptSpecSchema]).default(''),
  shims: z.array(ShimUseSchema).default([]),
  tools: ToolSettingsSchema.default({}),
  modelArgs: z.record(z.string(), z.json()).default({}),
  output: z
    .record(z.string(), z.unknown())
    .optional()
    .meta({ description: 'JSON Schema that the final answer must satisfy.' }),
  handoffs: z.array(z.string()).default([]),
  limits: RunLimitsSchema.default({}),
  metadata: z.record(z.string(), z.string()).default({}),
});
export type AgentDescriptor = z.infer<typeof AgentDescriptorSchema>;
