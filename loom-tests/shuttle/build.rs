#[path = "../build.rs"]
mod copy;

fn main() {
    copy::main();
    // A model like loom's, with another engine in it.
    println!("cargo::rustc-cfg=hashed_wheel_shuttle");
}
