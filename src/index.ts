/** The library entry `shimline`: an agent in code, and the server's app to embed. */
export { AgentDescriptorSchema, type AgentDescriptor } from './agent/descriptor.js';
export { DefaultAgent, handleOf, type DefaultAgentOptions } from './agent/default-agent.js';
export type { LifecycleEvent } from './agent/events.js';
export { buildApp, createServer } from './app.js';
export { parseConfig, type Config } from './config.js';
