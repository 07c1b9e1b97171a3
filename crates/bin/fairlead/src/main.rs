//! The `fairlead` binary. Everything is in the library beside it, so that tests reach it.

use std::process::ExitCode;

fn main() -> ExitCode {
    fairlead::main()
}
