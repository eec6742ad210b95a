#[path = "../build.rs"]
mod copy;

fn main() {
    copy::main();
    // shuttle's types replace loom's.
    println!("cargo::rustc-cfg=hashed_wheel_shuttle");
}
