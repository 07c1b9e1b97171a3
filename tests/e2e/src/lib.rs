//! End-to-end tests: real processes, driven through `pool.json`, the REST interface and the CLI as
//! an outsider would, and hurt on purpose. The tests are in `tests/e2e`, one module a subject.
