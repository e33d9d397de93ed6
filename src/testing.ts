/**
 * The public entry `shimline/testing`: what a shim author tests with. The guide is `shims/README.md`. Vitest is only needed for
 * `shimContractTests`.
 */
export { type ContractOptions, shimContractTests, type TestRunner } from './testing/contract-tests.js';
export {
  type RecordedRequest,
  ScriptError,
  type ScriptedAnswer,
  type ScriptedFailure,
  ScriptedModel,
  type ScriptedReply,
  type ScriptedToolCall,
} from './testing/scripted-model.js';
export {
  type ShimClass,
  type ShimEffect,
  type TestableShim,
  type TestedRun,
  type TestShimOptions,
  testShim,
} from './testing/test-shim.js';
