//! Every end-to-end test, in one binary: linking costs more than modules.

mod addresses;
mod bulk;
mod cli;
mod console;
mod control_gone;
mod database;
mod database_faults;
mod deploy;
mod endings;
mod enrolment;
mod hosts;
mod http;
mod input;
mod kills;
mod logs;
mod many;
mod observed;
mod restarts;
mod revoke;
mod secrecy;
mod slow_reader;
mod storm;
mod survival;
mod target_errors;
mod up;
