import { defineShim } from 'shimline/shims';

/** Is called everywhere and does nothing: what a bound shim costs by itself. */
export default defineShim({
  name: 'bench-idle',
  onRunStart() {
    // Being called is the point.
  },
  prepareTurn() {
    // Being called is the point.
  },
  onModelResponse() {
    // Being called is the point.
  },
  onRunEnd() {
    // Being called is the point.
  },
});
