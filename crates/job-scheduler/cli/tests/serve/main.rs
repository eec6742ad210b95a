//! `job-scheduler serve`, as browsers and programs use it.

mod bounds;
mod browser;
mod fixture;
mod pages;
mod problems;
mod refusals;
mod web_driver;
