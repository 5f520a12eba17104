//! Links the guest with `link.ld` of the crate `bare`, at a fixed address. The result is a flat file that a Linux
//! loader accepts as a bzImage.

fn main() {
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../bare/link.ld");
    println!("cargo:rustc-link-arg-bins=-T{}", script.display());
    println!("cargo:rustc-link-arg-bins=--no-pie");
    println!("cargo:rustc-link-arg-bins=--build-id=none");
    println!("cargo:rerun-if-changed={}", script.display());
}
