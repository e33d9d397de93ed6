/** The library entry `shimline`: an agent in code, and the server's app to embed. */

export { DefaultAgent, type DefaultAgentOptions, handleOf } from './agent/default-agent.js';
export { type AgentDescriptor, AgentDescriptorSchema } from './agent/descriptor.js';
export type { LifecycleEvent } from './agent/events.js';
export { buildApp, createServer } from './app.js';
export { type Config, parseConfig } from './config.js';
