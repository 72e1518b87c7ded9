//! The program: arguments in, tables or JSON out, an exit status. Prints through [`output`] alone; decides nothing that
//! the library does not offer to other programs too.

mod args;
mod compare;
mod feeds;
mod npz;
mod output;
mod progress;
mod random;
mod units;
