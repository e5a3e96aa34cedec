//! Users' trouble cases, one file per kind; each test bears the id of its case.

mod auto;
mod dump;
mod grad;
mod input;
mod perf;
mod place;
mod run;
mod rust;
mod vars;
