//! Builds the hypervisor, and puts it on media with its boot modules.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use ruzstd::encoding::CompressionLevel;
use scenarios::boot_server::{ADDRESS, Conf, Loaders, Served};
use scenarios::guests;
use scenarios::initramfs;
use scenarios::setup::{Content, Iommu, Medium, Module, Setup};

use crate::disk::fat::Entry;
use crate::outcome::Outcome;
use crate::{
    agent, direct_calls, disk, fetch, guest_tools, linux_program, management, media, paths, pvh, tools, two_guests, ui,
    vmlinux,
};

/// Rust's target of what runs on the bare machine, and of what UEFI starts.
pub const TARGET: &str = "x86_64-unknown-none";
pub const UEFI: &str = "x86_64-unknown-uefi";
/// Profiles of Cargo.toml. The second one checks arithmetic for overflows, and assertions.
const RELEASE: &str = "release";
const CHECKED: &str = "checked";

/// Files that every disc of one run of the tool shares.
pub struct Parts {
    /// The hypervisor.
    pub kernel: PathBuf,
    /// Debian's cloud kernel.
    pub guest_kernel: PathBuf,
    isolation: PathBuf,
    probe: PathBuf,
    /// The full initramfs.
    pub initrd: PathBuf,
    /// The initramfs without iperf3.
    pub small_initrd: PathBuf,
}

/// What `cargo mk image` is to build.
#[derive(Debug, Args)]
pub struct Options {
    /// A USB stick's image. It boots by BIOS and by UEFI.
    #[arg(long, conflicts_with_all = ["cd", "pxe", "efi"])]
    usb: bool,
    /// A CD's image, which boots by BIOS and by UEFI. This is the default.
    #[arg(long, conflicts_with_all = ["pxe", "efi"])]
    cd: bool,
    /// A folder for a TFTP server: machines boot from it by network, by BIOS (PXE) and by UEFI.
    #[arg(long, conflicts_with = "efi")]
    pxe: bool,
    /// One program for UEFI with all files in it, which firmware loads by HTTP boot.
    #[arg(long)]
    efi: bool,
    /// Where to put it. A file that is there is replaced; in a folder what is made here, and other files stay [default: target/sidecore.iso, sidecore.img with --usb, sidecore-pxe with --pxe,
    /// sidecore-http.efi with --efi].
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// A sidecore.toml to put on it [default: that of --modules, or the two guests of `cargo mk run`].
    #[arg(long)]
    config: Option<PathBuf>,
    /// sidecore's options on GRUB's line `multiboot2`, like "console=com2 machine-watchdog=60" (boot/README.md) [default: none].
    #[arg(long, value_name = "WORDS", default_value = "", value_parser = kernel_options, hide_default_value = true)]
    options: String,
    /// Its boot modules: the files in this folder, by their names [default: the test guests' kernel and initrd].
    #[arg(long, value_name = "FOLDER")]
    modules: Option<PathBuf>,
    /// The TFTP server of a folder [default: the one that the DHCP server names].
    #[arg(long, value_name = "ADDRESS", requires = "pxe")]
    server: Option<Ipv4Addr>,
    /// The size of a stick's image: bytes, or a number with K, M, G or T [default: what the files need, and 64 MiB].
    #[arg(long, value_parser = disk::size, requires = "usb")]
    size: Option<u64>,
    /// Makes the stick's FAT partition an EFI system partition, for firmware that boots from no other.
    #[arg(long, requires = "usb")]
    esp: bool,
    /// With a management guest: its RAM disk is the module `management`.
    #[arg(long, requires = "keys")]
    management: bool,
    /// The public keys that may log in to the management guest, one a line; permissions may stand before a key.
    #[arg(long, value_name = "FILE", requires = "management")]
    keys: Option<PathBuf>,
    /// The management guest's private host key [default: one is made at each boot].
    #[arg(long, value_name = "FILE", requires = "management")]
    host_key: Option<PathBuf>,
    /// Makes a host key in that file first, and prints its fingerprint.
    #[arg(long, requires = "host_key")]
    new_host_key: bool,
}

/// Checks words for GRUB's line. They stand there as they are, so no character of GRUB's shell may be among them.
fn kernel_options(text: &str) -> Result<String, String> {
    match text.chars().find(|c| !c.is_ascii_alphanumeric() && !" =.,:_-".contains(*c)) {
        None => Ok(text.trim().to_owned()),
        Some(c) => Err(format!("{c:?} cannot stand there: options have letters, digits, blanks and `=.,:_-`")),
    }
}

/// Whether a place, which may not be there yet, is a folder or something in it.
fn is_within(place: &Path, folder: &Path) -> Result<bool> {
    let folder = folder.canonicalize().with_context(|| format!("cannot read {}", folder.display()))?;
    let there = std::path::absolute(place)?.ancestors().find_map(|place| place.canonicalize().ok());
    Ok(there.is_some_and(|there| there.starts_with(folder)))
}

/// `cargo mk image`.
pub fn verb(options: &Options) -> Result<Outcome> {
    let Options { config, management, keys, host_key, .. } = options;
    let usual = match (options.usb, options.pxe, options.efi) {
        (true, ..) => "sidecore.img",
        (_, true, _) => "sidecore-pxe",
        (.., true) => "sidecore-http.efi",
        _ => "sidecore.iso",
    };
    let place = options.output.clone().unwrap_or_else(|| paths::target().join(usual));
    ensure!(
        !place.exists() || options.pxe || place.is_file(),
        "{} is no file: name a file by -o, and write that to the device with dd",
        place.display()
    );
    if let Some(folder) = &options.modules {
        ensure!(
            !is_within(&place, folder)?,
            "{} is in the folder of --modules, {}: name another place by -o",
            place.display(),
            folder.display()
        );
    }
    if let Some(path) = host_key.as_deref().filter(|_| options.new_host_key) {
        management::new_host_key(path)?;
    }
    let mut modules = match &options.modules {
        Some(folder) => media::folder(folder, config.is_some())?,
        None => Vec::new(),
    };
    let mut setup = if options.modules.is_some() { Setup::new("image", 0, 0) } else { two_guests::setup(false) };
    if *management {
        setup = guests::with_entries(setup, management::ENTRIES);
        setup = guests::with_last_entries(setup, management::GUEST);
        let content = management::content(keys.as_deref(), host_key.as_deref())?;
        setup.modules.push(Module::new("management", content));
    }
    if let Some(path) = config {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        setup.modules.retain(|module| !matches!(module.content, Content::Text(_)));
        setup.modules.push(Module::new("sidecore.toml", Content::Text(text)));
    }
    let work = paths::runs().join("image");
    fs::create_dir_all(&work)?;
    modules.extend(modules_of(&setup, &work)?);
    let machines = options.pxe.then(|| place.join("machines"));
    for mistake in media::mistakes(&modules, machines.as_deref())? {
        ui::warning(&mistake);
    }
    let kernel = parts()?.kernel.clone();
    let load_config = if options.pxe { media::CONFIG_BY_MACHINE } else { media::CONFIG_OF_MEDIUM };
    let content = media::Content::new(&kernel, &modules, load_config, |lines| menu(&options.options, lines), &work)?;
    if options.pxe {
        media::network(&content, options.server, &work, &place)?;
        ui::step("image", &format!("{}, a folder: sidecore.0 boots BIOS, sidecore.efi UEFI", place.display()));
        return Ok(Outcome::Good);
    }
    let built = if options.usb {
        media::stick(&content, media::Stick { size: options.size, esp: options.esp, before_grub: None }, &work, &place)
    } else if options.efi {
        media::program(&content, &work, &place)
    } else {
        media::cd(&content, media::Cd { uefi: true }, &work, &place)
    };
    if built.is_err() && place.exists() {
        // Nobody is to take half an image for one.
        fs::remove_file(&place).with_context(|| format!("cannot remove {}", place.display()))?;
    }
    built?;
    ui::step("image", &format!("{} ({} KiB)", place.display(), fs::metadata(&place)?.len() / 1024));
    Ok(Outcome::Good)
}

/// Builds what every disc needs, once.
pub fn parts() -> Result<&'static Parts> {
    static PARTS: OnceLock<Parts> = OnceLock::new();
    if let Some(parts) = PARTS.get() {
        return Ok(parts);
    }
    fetch::ensure(false)?;
    let kernel = hypervisor()?.to_owned();
    let folder = paths::runs().join("parts");
    let (tree, guest) = (paths::tree(), paths::guest_kernel());
    let udp_rr = linux_program::build("udp-rr")?;
    let image = |name: &str, content| -> Result<PathBuf> {
        let path = folder.join(name);
        fs::write(&path, initramfs::build(&tree, &guest, &[&udp_rr], content)?)?;
        Ok(path)
    };
    let parts = Parts {
        kernel,
        guest_kernel: kernel_of(&paths::guest_kernel())?,
        isolation: build("isolation", &[], RELEASE)?,
        probe: build("probe", &[], RELEASE)?,
        initrd: image("initrd", initramfs::Content::Full)?,
        small_initrd: image("initrd-small", initramfs::Content::Small)?,
    };
    Ok(PARTS.get_or_init(|| parts))
}

/// Builds the hypervisor: once. Its ELF file.
pub fn hypervisor() -> Result<&'static Path> {
    static KERNEL: OnceLock<PathBuf> = OnceLock::new();
    once(&KERNEL, || kernel("sidecore", &[], RELEASE))
}

/// Builds the hypervisor that checks arithmetic for overflows, and its assertions: once. Its ELF file.
pub fn checked_kernel() -> Result<&'static Path> {
    static KERNEL: OnceLock<PathBuf> = OnceLock::new();
    once(&KERNEL, || kernel("sidecore-checked", &[], CHECKED))
}

/// Makes a file if this run of the tool has not made it. Returns its path.
fn once(place: &'static OnceLock<PathBuf>, make: impl FnOnce() -> Result<PathBuf>) -> Result<&'static Path> {
    if let Some(made) = place.get() {
        return Ok(made);
    }
    let made = make()?;
    Ok(place.get_or_init(|| made))
}

/// Builds the hypervisor, makes its calls direct, and writes the ELF file to that name. Cargo overwrites its own when the features
/// change.
fn kernel(name: &str, features: &[&str], profile: &str) -> Result<PathBuf> {
    let built = build("sidecore", features, profile)?;
    let folder = paths::runs().join("parts");
    fs::create_dir_all(&folder)?;
    let place = folder.join(name);
    let mut image = fs::read(&built).with_context(|| format!("cannot read {}", built.display()))?;
    direct_calls::make(&mut image).with_context(|| built.display().to_string())?;
    fs::write(&place, image).with_context(|| format!("cannot write {}", place.display()))?;
    Ok(place)
}

/// Makes a disc in `folder` with a hypervisor that is built to count. Returns its path.
pub fn counting_disc(folder: &Path) -> Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let kernel = kernel("sidecore-count", &["--features", "count"], RELEASE)?;
    let content = media::Content::new(&kernel, &[], "", |lines| menu("emulator count", lines), folder)?;
    disc_of(&content, folder)
}

/// Builds a package for the bare machine with this profile and returns its ELF file.
fn build(package: &str, features: &[&str], profile: &str) -> Result<PathBuf> {
    Ok(build_for(TARGET, package, features, profile)?.join(package))
}

/// Builds an application that UEFI starts.
fn uefi_program(package: &str) -> Result<PathBuf> {
    Ok(build_for(UEFI, package, &[], RELEASE)?.join(package).with_extension("efi"))
}

/// Builds a package for a target without an operating system. Returns the folder that it is in.
fn build_for(target: &str, package: &str, features: &[&str], profile: &str) -> Result<PathBuf> {
    fetch::ensure_rust_target(target)?;
    let place = paths::target();
    let folder = place.display().to_string();
    let arguments =
        ["build", "--quiet", "--profile", profile, "--package", package, "--target", target, "--target-dir", &folder];
    if !tools::cargo(&[&arguments, features].concat(), &[])? {
        bail!("{package} does not build; the compiler's words are above");
    }
    Ok(place.join(target).join(profile))
}

/// Finds the kernel among the files of its package.
pub fn kernel_of(package: &Path) -> Result<PathBuf> {
    let boot = package.join("boot");
    for entry in fs::read_dir(&boot).with_context(|| format!("cannot read {}", boot.display()))? {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-")) {
            return Ok(path);
        }
    }
    bail!("no kernel in {}; `cargo mk fetch --again` brings it", boot.display())
}

/// Makes the medium of a setup in `folder`, for an emulator. `checked`: with the hypervisor of [`checked_kernel`]. Returns
/// its path.
pub fn disc(setup: &Setup, folder: &Path, checked: bool) -> Result<PathBuf> {
    let parts = parts()?;
    let kernel = match (setup.feature, checked) {
        (Some(feature), _) => {
            let profile = if checked { CHECKED } else { RELEASE };
            kernel(&format!("sidecore-{feature}"), &["--features", feature], profile)?
        }
        (None, true) => checked_kernel()?.to_owned(),
        (None, false) => parts.kernel.clone(),
    };
    fs::create_dir_all(folder)?;
    let mut modules = modules_of(setup, folder)?;
    let (kernel, options) = match setup.iommu {
        None => (kernel, setup.options.to_owned()),
        Some(iommu) => {
            modules.insert(0, ("sidecore".to_owned(), kernel));
            let tables = if iommu == Iommu::IntelIdentity { "identity" } else { "nothing" };
            (build("firmware-remapping", &[], RELEASE)?, format!("{} remapping={tables}", setup.options))
        }
    };
    let by_network = setup.medium.is_network();
    let load_config = if by_network { media::CONFIG_BY_MACHINE } else { media::CONFIG_OF_MEDIUM };
    let menu = |lines: &str| in_graphics(setup.graphics, menu_after(&setup.grub, &options, lines)?);
    let content = media::Content::new(&kernel, &modules, load_config, menu, folder)?;
    let place = folder.join("medium");
    match setup.medium {
        Medium::Disc => return disc_of(&content, folder),
        Medium::StickBios | Medium::StickUefi | Medium::StickSecureBoot => {
            media::stick(&content, media::Stick::default(), folder, &place)?;
        }
        Medium::StickUefiKeeps => {
            let first = uefi_program("firmware-memory")?;
            media::stick(&content, media::Stick { before_grub: Some(&first), ..Default::default() }, folder, &place)?;
        }
        Medium::DiskUefi => media::stick(&content, media::Stick { esp: true, ..Default::default() }, folder, &place)?,
        Medium::CdUefi => media::cd(&content, media::Cd { uefi: true }, folder, &place)?,
        Medium::NetworkBios | Medium::NetworkUefi | Medium::NetworkHttp => {
            media::network(&content, None, folder, &place)?;
        }
        Medium::Program => media::program(&content, folder, &place)?,
    }
    Ok(place)
}

/// The files of a boot server, by their paths on it.
///
/// - `srv/sidecore`: the folder for booting by network, with the CD's image `sidecore.iso` and the program `sidecore-http.efi`.
/// - `boot-server/NAME.conf`: each dnsmasq.conf, and nginx.conf.
/// - `boot-server/by-dhcp`, `boot-server/named`: GRUB's images that ask the server that DHCP names, or this one.
///
/// `folder`: where they are made.
pub fn served(served: &Served, folder: &Path) -> Result<Vec<Entry>> {
    let (setup, mut files) = (&served.setup, Vec::new());
    let kernel = parts()?.kernel.clone();
    let modules = modules_of(setup, folder)?;
    let content =
        |load_config| media::Content::new(&kernel, &modules, load_config, |lines| menu(setup.options, lines), folder);
    let mut add = |path: String, source: PathBuf| files.push(Entry { path, source });
    let (iso, program) = (folder.join("sidecore.iso"), folder.join("sidecore-http.efi"));
    let own = content(media::CONFIG_OF_MEDIUM)?;
    media::cd(&own, media::Cd { uefi: true }, folder, &iso)?;
    media::program(&own, folder, &program)?;
    add("srv/sidecore/sidecore.iso".to_owned(), iso);
    add("srv/sidecore/sidecore-http.efi".to_owned(), program);
    let content = content(media::CONFIG_BY_MACHINE)?;
    for loaders in [Loaders::ServerByDhcp, Loaders::ServerNamed] {
        let server = (loaders == Loaders::ServerNamed).then(|| ADDRESS.parse()).transpose()?;
        let place = folder.join(loaders.name());
        media::network(&content, server, folder, &place)?;
        for name in media::LOADERS {
            add(format!("boot-server/{}/{name}", loaders.name()), place.join(name));
        }
    }
    for file in &content.files {
        add(format!("srv/sidecore/{}", file.path), file.source.clone());
    }
    for (name, text) in &served.machines {
        let source = folder.join(format!("{name}.toml"));
        fs::write(&source, text)?;
        add(format!("srv/sidecore/machines/{name}.toml"), source);
    }
    for conf in Conf::ALL {
        let name = format!("{}.conf", conf.name());
        fs::write(folder.join(&name), conf.text()?)?;
        add(format!("boot-server/{name}"), folder.join(name));
    }
    fs::write(folder.join("nginx.conf"), NGINX_CONF)?;
    add("boot-server/nginx.conf".to_owned(), folder.join("nginx.conf"));
    Ok(files)
}

/// The nginx.conf of a boot server: the folder's files, and a log of requests.
const NGINX_CONF: &str = "\
daemon off;
user root;
pid /tmp/nginx.pid;
error_log stderr;
events {}
http {
    access_log /tmp/http;
    server {
        listen 80;
        root /srv/sidecore;
    }
}
";

/// Makes the disc that most scenarios boot, by BIOS.
fn disc_of(content: &media::Content, folder: &Path) -> Result<PathBuf> {
    let disc = folder.join("sidecore.iso");
    media::cd(content, media::Cd { uefi: false }, folder, &disc)?;
    Ok(disc)
}

/// The names and files of a setup's boot modules. A file that is made for one is in `folder`.
fn modules_of(setup: &Setup, folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let module = |(index, module): (usize, &Module)| {
        Ok((module.name.clone(), file(&module.content, folder, &format!("module-{index}"))?))
    };
    setup.modules.iter().enumerate().map(module).collect()
}

/// Returns the path of a file with this content. A file that is made for it alone is in `folder`. `name`: its name there,
/// which no other file of the folder has.
pub fn file(content: &Content, folder: &Path, name: &str) -> Result<PathBuf> {
    let parts = parts()?;
    Ok(match content {
        Content::Text(text) => {
            let path = folder.join(name);
            fs::write(&path, text)?;
            path
        }
        Content::GuestKernel => parts.guest_kernel.clone(),
        Content::GuestVmlinux => vmlinux::of(&parts.guest_kernel, &paths::runs().join("parts"))?,
        Content::CloudHv => fetch::cloudhv()?,
        Content::Tools => guest_tools::image()?,
        Content::Rhf => fetch::rhf()?,
        Content::BootDisk { cmdline, text } => {
            let (place, work) = (folder.join(name), folder.join(format!("{name}-work")));
            let (kernel, initrd) = (&parts.guest_kernel, &parts.small_initrd);
            disk::small(&disk::Small { kernel, initrd, cmdline, text }, &work, &place)?;
            place
        }
        Content::Management { keys, host_key } => {
            let path = folder.join(name);
            management::build(keys, host_key.as_deref(), &linux_program::build("sidecore-agent")?, &path)?;
            path
        }
        Content::AgentPackage => {
            let path = folder.join(name);
            fs::write(&path, agent::disk()?)?;
            path
        }
        Content::Initrd => parts.initrd.clone(),
        Content::SmallInitrd => parts.small_initrd.clone(),
        Content::Packed => {
            let path = folder.join(name);
            let packed = scenarios::setup::packed();
            fs::write(&path, ruzstd::encoding::compress_to_vec(&packed[..], CompressionLevel::Fastest))?;
            path
        }
        Content::Isolation => parts.isolation.clone(),
        Content::Probe => parts.probe.clone(),
        Content::ProbeFirmware => pvh::of(&parts.probe, folder)?,
    })
}

/// Makes a disc with plain Linux in `folder`: the guests' kernel, the small initramfs with nvme-cli and `sidecore-doctor`, and these actions of
/// `guest/init`. Returns its path.
pub fn linux_disc(actions: &str, folder: &Path) -> Result<PathBuf> {
    let parts = parts()?;
    fetch::ensure_nvme_tools()?;
    let more = paths::runs().join("parts/initrd-plain");
    let doctor = linux_program::build("sidecore-doctor")?;
    fs::write(&more, initramfs::plain(&paths::nvme_tools(), &paths::guest_kernel(), &doctor)?)?;
    // The lines about the disks are of the levels 4 to 6.
    let menu = format!(
        "serial --unit=0 --speed=115200\nterminal_input serial console\nterminal_output serial console\nset timeout=0\n\
         menuentry \"Linux\" {{\n    linux /vmlinuz console=ttyS0 quiet loglevel=3 panic=-1 sc.do={actions}\n    \
         initrd /initrd /initrd-plain\n}}\n"
    );
    let menu_file = folder.join("grub.cfg");
    fs::write(&menu_file, menu)?;
    let files = [
        ("vmlinuz", &parts.guest_kernel),
        ("initrd", &parts.small_initrd),
        ("initrd-plain", &more),
        ("boot/grub/grub.cfg", &menu_file),
    ];
    let files = files.map(|(path, source)| Entry { path: path.to_owned(), source: source.clone() });
    disc_of(&media::Content::of(files.to_vec())?, folder)
}

/// The same as [`menu`], with these commands before sidecore is loaded.
fn menu_after(commands: &[String], options: &str, lines: &str) -> Result<String> {
    const LOAD: &str = "    multiboot2 /sidecore";
    let menu = menu(options, lines)?;
    ensure!(commands.is_empty() || menu.matches(LOAD).count() == 1, "GRUB's menu does not load sidecore once");
    let commands: String = commands.iter().map(|command| format!("    {command}\n")).collect();
    Ok(menu.replace(LOAD, &format!("{commands}{LOAD}")))
}

/// A menu with which GRUB sets this graphics mode for sidecore, not VGA's text.
fn in_graphics(mode: Option<&str>, menu: String) -> Result<String> {
    const TEXT: &str = "set gfxpayload=text;";
    let Some(mode) = mode else { return Ok(menu) };
    ensure!(menu.matches(TEXT).count() == 1, "GRUB's menu does not choose VGA's text once");
    Ok(menu.replace(TEXT, &format!("set gfxpayload={mode};")))
}

/// GRUB's menu with these words on the kernel's command line, and these lines for its modules.
fn menu(options: &str, lines: &str) -> Result<String> {
    let menu = fs::read_to_string(paths::root().join("boot/grub.cfg")).context("cannot read boot/grub.cfg")?;
    let menu = menu.replace(" OPTIONS\n", &format!("{}\n", format!(" {options}").trim_end()));
    Ok(menu.replace("    MODULES\n", &format!("    {}\n", lines.trim_end())))
}
