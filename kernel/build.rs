//! Links the kernel with `linker.ld` at the root of the repository: a static position-independent executable, whose
//! relocations are all in the format RELR.

fn main() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let script = root.join("linker.ld");
    println!("cargo:rustc-link-arg-bins=-T{}", script.display());
    println!("cargo:rustc-link-arg-bins=--build-id=none");
    println!("cargo:rustc-link-arg-bins=--pack-dyn-relocs=relr");
    println!("cargo:rerun-if-changed={}", script.display());
}
