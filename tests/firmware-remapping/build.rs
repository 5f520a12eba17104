//! Links the program as the hypervisor: with `linker.ld` at the root of the repository, because its entry is the same.

fn main() {
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../linker.ld");
    println!("cargo:rustc-link-arg-bins=-T{}", script.display());
    println!("cargo:rustc-link-arg-bins=--build-id=none");
    println!("cargo:rustc-link-arg-bins=--pack-dyn-relocs=relr");
    println!("cargo:rerun-if-changed={}", script.display());
}
