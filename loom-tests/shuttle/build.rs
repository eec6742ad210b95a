fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // A model like loom's, with another engine in it.
    println!("cargo:rustc-cfg=hashed_wheel_loom");
    println!("cargo:rustc-cfg=hashed_wheel_shuttle");
}
