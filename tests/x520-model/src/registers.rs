//! The registers that the model knows, as one table: name, banks of (offset, stride, count), access, value after reset,
//! section of the data sheet. Everything else in the 128 KiB of BAR 0 is a diagnostic.

/// The effect of reading and writing a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A read returns what was written, except in special bits.
    ReadWrite,
    /// Writing is a mistake.
    ReadOnly,
    /// Reading is a mistake.
    WriteOnly,
    /// A counter or an interrupt cause. Reading sets it to 0.
    ReadClear,
}

/// Registers at a fixed distance from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bank {
    /// Offset of the first in BAR 0, in bytes.
    pub offset: u32,
    /// Bytes from one to the next.
    pub stride: u32,
    /// The number of registers.
    pub count: u32,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Register {
    /// The register.
    pub reg: Reg,
    /// Name in the data sheet.
    pub name: &'static str,
    /// Its banks. Indices run on from one bank to the next.
    pub banks: &'static [Bank],
    /// Access.
    pub access: Access,
    /// Value after reset.
    pub reset: u32,
    /// Section of the data sheet.
    pub section: &'static str,
}

macro_rules! registers {
    ($($reg:ident $name:literal [$($offset:literal + $stride:literal x $count:literal),+] $access:ident $reset:literal $section:literal)+) => {
        /// A register, by its name in the data sheet.
        #[allow(missing_docs, reason = "the data sheet's names")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reg { $($reg),+ }

        /// All registers, in the order of [`Reg`].
        pub const TABLE: &[Register] = &[$(Register {
            reg: Reg::$reg,
            name: $name,
            banks: &[$(Bank { offset: $offset, stride: $stride, count: $count }),+],
            access: Access::$access,
            reset: $reset,
            section: $section,
        }),+];
    };
}

registers! {
    Ctrl "CTRL" [0x00000 + 4 x 1] ReadWrite 0 "8.2.3.1"
    Status "STATUS" [0x00008 + 4 x 1] ReadOnly 0x0008_0000 "8.2.3.1"
    CtrlExt "CTRL_EXT" [0x00018 + 4 x 1] ReadWrite 0 "8.2.3.1"
    Esdp "ESDP" [0x00020 + 4 x 1] ReadWrite 0 "8.2.3.1"
    I2cctl "I2CCTL" [0x00028 + 4 x 1] ReadWrite 0xf "8.2.3.1"
    Ledctl "LEDCTL" [0x00200 + 4 x 1] ReadWrite 0 "8.2.3.1"

    Eec "EEC" [0x10010 + 4 x 1] ReadWrite 0x2100 "8.2.3.2"
    Eerd "EERD" [0x10014 + 4 x 1] ReadWrite 0 "8.2.3.2"
    Fla "FLA" [0x1001c + 4 x 1] ReadWrite 0 "8.2.3.2"
    Eemngctl "EEMNGCTL" [0x10110 + 4 x 1] ReadOnly 0 "8.2.3.2"

    Pfctop "PFCTOP" [0x03008 + 4 x 1] ReadWrite 0 "8.2.3.3"
    Fcttv "FCTTV" [0x03200 + 4 x 4] ReadWrite 0 "8.2.3.3"
    Fcrtl "FCRTL" [0x03220 + 4 x 8] ReadWrite 0 "8.2.3.3"
    Fcrth "FCRTH" [0x03260 + 4 x 8] ReadWrite 0 "8.2.3.3"
    Fcrtv "FCRTV" [0x032a0 + 4 x 1] ReadWrite 0 "8.2.3.3"
    Fccfg "FCCFG" [0x03d00 + 4 x 1] ReadWrite 0 "8.2.3.3"

    Gcr "GCR" [0x11000 + 4 x 1] ReadWrite 0 "8.2.3.4"
    GcrExt "GCR_EXT" [0x11050 + 4 x 1] ReadWrite 0 "8.2.3.4"
    Swsm "SWSM" [0x10140 + 4 x 1] ReadWrite 0 "8.2.3.4"
    Fwsm "FWSM" [0x10148 + 4 x 1] ReadOnly 0x8000 "8.2.3.4"
    SwFwSync "SW_FW_SYNC" [0x10160 + 4 x 1] ReadWrite 0 "8.2.3.4"
    Factps "FACTPS" [0x10150 + 4 x 1] ReadOnly 0 "8.2.3.4"
    Hicr "HICR" [0x15f00 + 4 x 1] ReadWrite 0 "10.5.4"
    Fwsts "FWSTS" [0x15f0c + 4 x 1] ReadWrite 0 "10.5.4"
    DcaCtrl "DCA_CTRL" [0x11074 + 4 x 1] ReadWrite 1 "8.2.3.11"

    Eicr "EICR" [0x00800 + 4 x 1] ReadClear 0 "8.2.3.5"
    Eics "EICS" [0x00808 + 4 x 1] ReadWrite 0 "8.2.3.5"
    Eims "EIMS" [0x00880 + 4 x 1] ReadWrite 0 "8.2.3.5"
    Eimc "EIMC" [0x00888 + 4 x 1] WriteOnly 0 "8.2.3.5"
    Eiac "EIAC" [0x00810 + 4 x 1] ReadWrite 0 "8.2.3.5"
    Eiam "EIAM" [0x00890 + 4 x 1] ReadWrite 0 "8.2.3.5"
    EicsEx "EICS_EX" [0x00a90 + 4 x 2] WriteOnly 0 "8.2.3.5"
    EimsEx "EIMS_EX" [0x00aa0 + 4 x 2] ReadWrite 0 "8.2.3.5"
    EimcEx "EIMC_EX" [0x00ab0 + 4 x 2] WriteOnly 0 "8.2.3.5"
    EiamEx "EIAM_EX" [0x00ad0 + 4 x 2] ReadWrite 0 "8.2.3.5"
    Eitr "EITR" [0x00820 + 4 x 24, 0x12300 + 4 x 105] ReadWrite 0 "8.2.3.5"
    Ivar "IVAR" [0x00900 + 4 x 64] ReadWrite 0 "8.2.3.5"
    IvarMisc "IVAR_MISC" [0x00a00 + 4 x 1] ReadWrite 0 "8.2.3.5"
    Gpie "GPIE" [0x00898 + 4 x 1] ReadWrite 0 "8.2.3.5"

    Fctrl "FCTRL" [0x05080 + 4 x 1] ReadWrite 0 "8.2.3.7"
    Vlnctrl "VLNCTRL" [0x05088 + 4 x 1] ReadWrite 0x8100 "8.2.3.7"
    Mcstctrl "MCSTCTRL" [0x05090 + 4 x 1] ReadWrite 0 "8.2.3.7"
    Psrtype "PSRTYPE" [0x0ea00 + 4 x 64] ReadWrite 0 "8.2.3.7"
    Rxcsum "RXCSUM" [0x05000 + 4 x 1] ReadWrite 0 "8.2.3.7"
    Rfctl "RFCTL" [0x05008 + 4 x 1] ReadWrite 0 "8.2.3.7"
    Mta "MTA" [0x05200 + 4 x 128] ReadWrite 0 "8.2.3.7"
    Ral "RAL" [0x0a200 + 8 x 128] ReadWrite 0 "8.2.3.7"
    Rah "RAH" [0x0a204 + 8 x 128] ReadWrite 0 "8.2.3.7"
    Mpsar "MPSAR" [0x0a600 + 4 x 256] ReadWrite 0 "8.2.3.7"
    Vfta "VFTA" [0x0a000 + 4 x 128] ReadWrite 0 "8.2.3.7"
    Mrqc "MRQC" [0x0ec80 + 4 x 1] ReadWrite 0 "8.2.3.7"
    Rssrk "RSSRK" [0x0eb80 + 4 x 10] ReadWrite 0 "8.2.3.7"
    Reta "RETA" [0x0eb00 + 4 x 32] ReadWrite 0 "8.2.3.7"
    Saqf "SAQF" [0x0e000 + 4 x 128] ReadWrite 0 "8.2.3.7"
    Daqf "DAQF" [0x0e200 + 4 x 128] ReadWrite 0 "8.2.3.7"
    Sdpqf "SDPQF" [0x0e400 + 4 x 128] ReadWrite 0 "8.2.3.7"
    Ftqf "FTQF" [0x0e600 + 4 x 128] ReadWrite 0 "8.2.3.7"
    Synqf "SYNQF" [0x0ec30 + 4 x 1] ReadWrite 0 "8.2.3.7"
    Etqf "ETQF" [0x05128 + 4 x 8] ReadWrite 0 "8.2.3.7"
    Etqs "ETQS" [0x0ec00 + 4 x 8] ReadWrite 0 "8.2.3.7"

    Rdbal "RDBAL" [0x01000 + 0x40 x 64, 0x0d000 + 0x40 x 64] ReadWrite 0 "8.2.3.8"
    Rdbah "RDBAH" [0x01004 + 0x40 x 64, 0x0d004 + 0x40 x 64] ReadWrite 0 "8.2.3.8"
    Rdlen "RDLEN" [0x01008 + 0x40 x 64, 0x0d008 + 0x40 x 64] ReadWrite 0 "8.2.3.8"
    DcaRxctrl "DCA_RXCTRL" [0x0100c + 0x40 x 64, 0x0d00c + 0x40 x 64] ReadWrite 0x1000 "8.2.3.11"
    Rdh "RDH" [0x01010 + 0x40 x 64, 0x0d010 + 0x40 x 64] ReadWrite 0 "8.2.3.8"
    Srrctl "SRRCTL" [0x01014 + 0x40 x 64, 0x0d014 + 0x40 x 64] ReadWrite 0x402 "8.2.3.8"
    Rdt "RDT" [0x01018 + 0x40 x 64, 0x0d018 + 0x40 x 64] ReadWrite 0 "8.2.3.8"
    Rxdctl "RXDCTL" [0x01028 + 0x40 x 64, 0x0d028 + 0x40 x 64] ReadWrite 0 "8.2.3.8"
    Rscctl "RSCCTL" [0x0102c + 0x40 x 64, 0x0d02c + 0x40 x 64] ReadWrite 0 "8.2.3.8"
    Rdrxctl "RDRXCTL" [0x02f00 + 4 x 1] ReadWrite 0x0010_0000 "8.2.3.8"
    Rxpbsize "RXPBSIZE" [0x03c00 + 4 x 8] ReadWrite 0 "8.2.3.8"
    Rxctrl "RXCTRL" [0x03000 + 4 x 1] ReadWrite 0 "8.2.3.8"
    Rscdbu "RSCDBU" [0x03028 + 4 x 1] ReadWrite 0 "8.2.3.8"

    Dmatxctl "DMATXCTL" [0x04a80 + 4 x 1] ReadWrite 0x8100_0000 "8.2.3.9"
    Dtxtcpflgl "DTXTCPFLGL" [0x04a88 + 4 x 1] ReadWrite 0x0f76_0ff6 "8.2.3.9"
    Dtxtcpflgh "DTXTCPFLGH" [0x04a8c + 4 x 1] ReadWrite 0x0000_0f7f "8.2.3.9"
    Dtxmxszrq "DTXMXSZRQ" [0x08100 + 4 x 1] ReadWrite 0x10 "8.2.3.9"
    Txpbsize "TXPBSIZE" [0x0cc00 + 4 x 8] ReadWrite 0 "8.2.3.9"
    Txpbthresh "TXPBTHRESH" [0x04950 + 4 x 8] ReadWrite 0 "8.2.3.9"
    Mtqc "MTQC" [0x08120 + 4 x 1] ReadWrite 0 "8.2.3.9"
    Tdbal "TDBAL" [0x06000 + 0x40 x 128] ReadWrite 0 "8.2.3.9"
    Tdbah "TDBAH" [0x06004 + 0x40 x 128] ReadWrite 0 "8.2.3.9"
    Tdlen "TDLEN" [0x06008 + 0x40 x 128] ReadWrite 0 "8.2.3.9"
    DcaTxctrl "DCA_TXCTRL" [0x0600c + 0x40 x 128] ReadWrite 0 "8.2.3.11"
    Tdh "TDH" [0x06010 + 0x40 x 128] ReadWrite 0 "8.2.3.9"
    Tdt "TDT" [0x06018 + 0x40 x 128] ReadWrite 0 "8.2.3.9"
    Txdctl "TXDCTL" [0x06028 + 0x40 x 128] ReadWrite 0 "8.2.3.9"
    Tdwbal "TDWBAL" [0x06038 + 0x40 x 128] ReadWrite 0 "8.2.3.9"
    Tdwbah "TDWBAH" [0x0603c + 0x40 x 128] ReadWrite 0 "8.2.3.9"

    Rttdcs "RTTDCS" [0x04900 + 4 x 1] ReadWrite 0 "8.2.3.10"
    Rttdqsel "RTTDQSEL" [0x04904 + 4 x 1] ReadWrite 0 "8.2.3.10"
    Rttdt1c "RTTDT1C" [0x04908 + 4 x 1] ReadWrite 0 "8.2.3.10"
    Rttbcnrc "RTTBCNRC" [0x04984 + 4 x 1] ReadWrite 0 "8.2.3.10"
    Rtrup2tc "RTRUP2TC" [0x03020 + 4 x 1] ReadWrite 0 "8.2.3.10"
    Rttup2tc "RTTUP2TC" [0x0c800 + 4 x 1] ReadWrite 0 "8.2.3.10"

    Sectxctrl "SECTXCTRL" [0x08800 + 4 x 1] ReadWrite 0 "8.2.3.12"
    Sectxstat "SECTXSTAT" [0x08804 + 4 x 1] ReadOnly 0 "8.2.3.12"
    Sectxminifg "SECTXMINIFG" [0x08810 + 4 x 1] ReadWrite 0x1_0001 "8.2.3.12"
    Sectxbuffaf "SECTXBUFFAF" [0x08808 + 4 x 1] ReadWrite 0x250 "8.2.3.12"
    Secrxctrl "SECRXCTRL" [0x08d00 + 4 x 1] ReadWrite 0 "8.2.3.12"
    Secrxstat "SECRXSTAT" [0x08d04 + 4 x 1] ReadOnly 0 "8.2.3.12"
    Ipstxidx "IPSTXIDX" [0x08900 + 4 x 1] ReadWrite 0 "8.2.3.14"
    Ipstxsalt "IPSTXSALT" [0x08904 + 4 x 1] ReadWrite 0 "8.2.3.14"
    Ipstxkey "IPSTXKEY" [0x08908 + 4 x 4] ReadWrite 0 "8.2.3.14"
    Ipsrxidx "IPSRXIDX" [0x08e00 + 4 x 1] ReadWrite 0 "8.2.3.14"
    Ipsrxipaddr "IPSRXIPADDR" [0x08e04 + 4 x 4] ReadWrite 0 "8.2.3.14"
    Ipsrxspi "IPSRXSPI" [0x08e14 + 4 x 1] ReadWrite 0 "8.2.3.14"
    Ipsrxipidx "IPSRXIPIDX" [0x08e18 + 4 x 1] ReadWrite 0 "8.2.3.14"
    Ipsrxkey "IPSRXKEY" [0x08e1c + 4 x 4] ReadWrite 0 "8.2.3.14"
    Ipsrxsalt "IPSRXSALT" [0x08e2c + 4 x 1] ReadWrite 0 "8.2.3.14"
    Ipsrxmod "IPSRXMOD" [0x08e30 + 4 x 1] ReadWrite 0 "8.2.3.14"
    Fdirctrl "FDIRCTRL" [0x0ee00 + 4 x 1] ReadWrite 0 "8.2.3.20"
    Fdirhash "FDIRHASH" [0x0ee28 + 4 x 1] ReadWrite 0 "8.2.3.20"
    Fdircmd "FDIRCMD" [0x0ee2c + 4 x 1] ReadWrite 0 "8.2.3.20"
    Fdirhkey "FDIRHKEY" [0x0ee68 + 4 x 1] ReadWrite 0 "8.2.3.20"
    Fdirskey "FDIRSKEY" [0x0ee6c + 4 x 1] ReadWrite 0 "8.2.3.20"
    Fdirmatch "FDIRMATCH" [0x0ee58 + 4 x 1] ReadClear 0 "8.2.3.20"
    Fdirmiss "FDIRMISS" [0x0ee5c + 4 x 1] ReadClear 0 "8.2.3.20"

    Hlreg0 "HLREG0" [0x04240 + 4 x 1] ReadWrite 0x0000_0403 "8.2.3.22"
    Hlreg1 "HLREG1" [0x04244 + 4 x 1] ReadOnly 0 "8.2.3.22"
    Msca "MSCA" [0x0425c + 4 x 1] ReadWrite 0 "8.2.3.22"
    Msrwd "MSRWD" [0x04260 + 4 x 1] ReadWrite 0 "8.2.3.22"
    Maxfrs "MAXFRS" [0x04268 + 4 x 1] ReadWrite 0x05ee_0000 "8.2.3.22"
    Mflcn "MFLCN" [0x04294 + 4 x 1] ReadWrite 0 "8.2.3.22"
    Mmngc "MMNGC" [0x042d0 + 4 x 1] ReadOnly 0 "8.2.3.22"
    Autoc "AUTOC" [0x042a0 + 4 x 1] ReadWrite 0xc09c_6004 "8.2.3.22"
    Anlp1 "ANLP1" [0x042b0 + 4 x 1] ReadOnly 0 "8.2.3.22"
    Links "LINKS" [0x042a4 + 4 x 1] ReadOnly 0 "8.2.3.22"
    Links2 "LINKS2" [0x04324 + 4 x 1] ReadOnly 0 "8.2.3.22"
    Autoc2 "AUTOC2" [0x042a8 + 4 x 1] ReadWrite 0x000a_0000 "8.2.3.22"
    Macc "MACC" [0x04330 + 4 x 1] ReadWrite 0 "8.2.3.22"
    Corectl "CORECTL" [0x14f00 + 4 x 1] ReadWrite 0 "8.2.3.22"

    Pcs1glctl "PCS1GLCTL" [0x04208 + 4 x 1] ReadWrite 0 "8.2.3.22"
    Pcs1glsta "PCS1GLSTA" [0x0420c + 4 x 1] ReadOnly 0 "8.2.3.22"
    Pcs1gana "PCS1GANA" [0x04218 + 4 x 1] ReadWrite 0 "8.2.3.22"

    Pxontxc "PXONTXC" [0x03f00 + 4 x 8] ReadClear 0 "8.2.3.23"
    Pxofftxc "PXOFFTXC" [0x03f20 + 4 x 8] ReadClear 0 "8.2.3.23"
    Pxonrxcnt "PXONRXCNT" [0x04140 + 4 x 8] ReadClear 0 "8.2.3.23"
    Pxoffrxcnt "PXOFFRXCNT" [0x04160 + 4 x 8] ReadClear 0 "8.2.3.23"
    Pxon2offcnt "PXON2OFFCNT" [0x03240 + 4 x 8] ReadClear 0 "8.2.3.23"
    Txdgpc "TXDGPC" [0x087a0 + 4 x 1] ReadClear 0 "8.2.3.23"
    Mngptc "MNGPTC" [0x0cf90 + 4 x 1] ReadClear 0 "8.2.3.23"
    Fccrc "FCCRC" [0x05118 + 4 x 1] ReadClear 0 "8.2.3.23"
    Fcoerpdc "FCOERPDC" [0x0241c + 4 x 1] ReadClear 0 "8.2.3.23"
    Fcoeprc "FCOEPRC" [0x02428 + 4 x 1] ReadClear 0 "8.2.3.23"
    Fcoedwrc "FCOEDWRC" [0x0242c + 4 x 1] ReadClear 0 "8.2.3.23"
    Fcoeptc "FCOEPTC" [0x08784 + 4 x 1] ReadClear 0 "8.2.3.23"
    Fcoedwtc "FCOEDWTC" [0x08788 + 4 x 1] ReadClear 0 "8.2.3.23"
    Wuc "WUC" [0x05800 + 4 x 1] ReadWrite 0 "8.2.3.24"
    Wufc "WUFC" [0x05808 + 4 x 1] ReadWrite 0 "8.2.3.24"
    Wus "WUS" [0x05810 + 4 x 1] ReadWrite 0 "8.2.3.24"
    Rxmtrl "RXMTRL" [0x05120 + 4 x 1] ReadWrite 0 "8.2.3.26"
    Tsyncrxctl "TSYNCRXCTL" [0x05188 + 4 x 1] ReadWrite 0 "8.2.3.26"
    Rxstmpl "RXSTMPL" [0x051e8 + 4 x 1] ReadOnly 0 "8.2.3.26"
    Rxstmph "RXSTMPH" [0x051a4 + 4 x 1] ReadOnly 0 "8.2.3.26"
    Tsynctxctl "TSYNCTXCTL" [0x08c00 + 4 x 1] ReadWrite 0 "8.2.3.26"
    Txstmpl "TXSTMPL" [0x08c04 + 4 x 1] ReadOnly 0 "8.2.3.26"
    Txstmph "TXSTMPH" [0x08c08 + 4 x 1] ReadOnly 0 "8.2.3.26"
    Systiml "SYSTIML" [0x08c0c + 4 x 1] ReadWrite 0 "8.2.3.26"
    Systimh "SYSTIMH" [0x08c10 + 4 x 1] ReadWrite 0 "8.2.3.26"
    Timinca "TIMINCA" [0x08c14 + 4 x 1] ReadWrite 0 "8.2.3.26"
    Crcerrs "CRCERRS" [0x04000 + 4 x 1] ReadClear 0 "8.2.3.23"
    Illerrc "ILLERRC" [0x04004 + 4 x 1] ReadClear 0 "8.2.3.23"
    Errbc "ERRBC" [0x04008 + 4 x 1] ReadClear 0 "8.2.3.23"
    Mspdc "MSPDC" [0x04010 + 4 x 1] ReadClear 0 "8.2.3.23"
    Rxmpc "RXMPC" [0x03fa0 + 4 x 8] ReadClear 0 "8.2.3.23"
    Mlfc "MLFC" [0x04034 + 4 x 1] ReadClear 0 "8.2.3.23"
    Mrfc "MRFC" [0x04038 + 4 x 1] ReadClear 0 "8.2.3.23"
    Rlec "RLEC" [0x04040 + 4 x 1] ReadClear 0 "8.2.3.23"
    Lxontxc "LXONTXC" [0x03f60 + 4 x 1] ReadClear 0 "8.2.3.23"
    Lxonrxcnt "LXONRXCNT" [0x041a4 + 4 x 1] ReadClear 0 "8.2.3.23"
    Lxofftxc "LXOFFTXC" [0x03f68 + 4 x 1] ReadClear 0 "8.2.3.23"
    Lxoffrxcnt "LXOFFRXCNT" [0x041a8 + 4 x 1] ReadClear 0 "8.2.3.23"
    Prc "PRC" [0x0405c + 4 x 6] ReadClear 0 "8.2.3.23"
    Gprc "GPRC" [0x04074 + 4 x 1] ReadClear 0 "8.2.3.23"
    Bprc "BPRC" [0x04078 + 4 x 1] ReadClear 0 "8.2.3.23"
    Mprc "MPRC" [0x0407c + 4 x 1] ReadClear 0 "8.2.3.23"
    Gptc "GPTC" [0x04080 + 4 x 1] ReadClear 0 "8.2.3.23"
    Gorcl "GORCL" [0x04088 + 4 x 1] ReadClear 0 "8.2.3.23"
    Gorch "GORCH" [0x0408c + 4 x 1] ReadClear 0 "8.2.3.23"
    Gotcl "GOTCL" [0x04090 + 4 x 1] ReadClear 0 "8.2.3.23"
    Gotch "GOTCH" [0x04094 + 4 x 1] ReadClear 0 "8.2.3.23"
    Ruc "RUC" [0x040a4 + 4 x 1] ReadClear 0 "8.2.3.23"
    Rfc "RFC" [0x040a8 + 4 x 1] ReadClear 0 "8.2.3.23"
    Roc "ROC" [0x040ac + 4 x 1] ReadClear 0 "8.2.3.23"
    Rjc "RJC" [0x040b0 + 4 x 1] ReadClear 0 "8.2.3.23"
    Mngprc "MNGPRC" [0x040b4 + 4 x 1] ReadClear 0 "8.2.3.23"
    Mngpdc "MNGPDC" [0x040b8 + 4 x 1] ReadClear 0 "8.2.3.23"
    Torl "TORL" [0x040c0 + 4 x 1] ReadClear 0 "8.2.3.23"
    Torh "TORH" [0x040c4 + 4 x 1] ReadClear 0 "8.2.3.23"
    Tpr "TPR" [0x040d0 + 4 x 1] ReadClear 0 "8.2.3.23"
    Tpt "TPT" [0x040d4 + 4 x 1] ReadClear 0 "8.2.3.23"
    Ptc "PTC" [0x040d8 + 4 x 6] ReadClear 0 "8.2.3.23"
    Mptc "MPTC" [0x040f0 + 4 x 1] ReadClear 0 "8.2.3.23"
    Bptc "BPTC" [0x040f4 + 4 x 1] ReadClear 0 "8.2.3.23"
    Xec "XEC" [0x04120 + 4 x 1] ReadClear 0 "8.2.3.23"
    Rqsmr "RQSMR" [0x02300 + 4 x 32] ReadWrite 0 "8.2.3.23"
    Tqsm "TQSM" [0x08600 + 4 x 32] ReadWrite 0 "8.2.3.23"
    Qprc "QPRC" [0x01030 + 0x40 x 16] ReadClear 0 "8.2.3.23"
    Qbrcl "QBRC_L" [0x01034 + 0x40 x 16] ReadClear 0 "8.2.3.23"
    Qbrch "QBRC_H" [0x01038 + 0x40 x 16] ReadClear 0 "8.2.3.23"
    Qprdc "QPRDC" [0x01430 + 0x40 x 16] ReadClear 0 "8.2.3.23"
    Qptc "QPTC" [0x08680 + 4 x 16] ReadClear 0 "8.2.3.23"
    Qbtcl "QBTC_L" [0x08700 + 8 x 16] ReadClear 0 "8.2.3.23"
    Qbtch "QBTC_H" [0x08704 + 8 x 16] ReadClear 0 "8.2.3.23"

    Pfvtctl "PFVTCTL" [0x051b0 + 4 x 1] ReadWrite 0 "8.2.3.27"
    Pfvfre "PFVFRE" [0x051e0 + 4 x 2] ReadWrite 0 "8.2.3.27"
    Pfvfte "PFVFTE" [0x08110 + 4 x 2] ReadWrite 0 "8.2.3.27"
    Pfqde "PFQDE" [0x02f04 + 4 x 1] ReadWrite 0 "8.2.3.27"
    Pfdtxgswc "PFDTXGSWC" [0x08220 + 4 x 1] ReadWrite 0 "8.2.3.27"
    Pfuta "PFUTA" [0x0f400 + 4 x 128] ReadWrite 0 "8.2.3.27"
    Pfvml2flt "PFVML2FLT" [0x0f000 + 4 x 64] ReadWrite 0 "8.2.3.27"
    Pfvlvf "PFVLVF" [0x0f100 + 4 x 64] ReadWrite 0 "8.2.3.27"
    Pfvlvfb "PFVLVFB" [0x0f200 + 4 x 128] ReadWrite 0 "8.2.3.27"
}

/// Bytes of BAR 0.
pub const BAR_BYTES: u32 = 0x2_0000;

/// Translates the alias of a register into its own offset. Aliases are offsets of the device's predecessor, which the
/// data sheet keeps (8.2.2).
#[must_use]
pub const fn canonical(offset: u32) -> u32 {
    match offset {
        0x0004 => 0x0000,
        0x6030..=0x63ff if offset % 0x40 == 0x30 => 0x8680 + (offset - 0x6030) / 0x40 * 4,
        0x2100..=0x213f => 0x1014 + (offset - 0x2100) / 4 * 0x40,
        0x2200..=0x223f => 0x100c + (offset - 0x2200) / 4 * 0x40,
        0x5400..=0x547f => 0xa200 + (offset - 0x5400),
        0x5480..=0x54bf => 0xea00 + (offset - 0x5480),
        0x5818 => 0xec80,
        0x5c00..=0x5c7f => 0xeb00 + (offset - 0x5c00),
        0x5c80..=0x5ca7 => 0xeb80 + (offset - 0x5c80),
        _ => offset,
    }
}

impl Reg {
    /// The existing bits, for registers whose other bits a driver may expect to read as 0.
    #[must_use]
    pub const fn bits(self) -> u32 {
        match self {
            Self::Rdbal | Self::Tdbal => 0xffff_ff80,
            Self::Rdlen | Self::Tdlen => 0x000f_ff80,
            Self::Rdh | Self::Rdt | Self::Tdh | Self::Tdt => 0xffff,
            Self::Rah => 0x8000_ffff,
            _ => u32::MAX,
        }
    }

    /// Its row in the table.
    #[must_use]
    pub fn row(self) -> &'static Register {
        &TABLE[self as usize]
    }

    /// Offset in BAR 0 of the `n`th register.
    ///
    /// # Panics
    /// There are not that many.
    #[must_use]
    pub fn offset(self, n: usize) -> u32 {
        let mut n = n as u32;
        for bank in self.row().banks {
            if n < bank.count {
                return bank.offset + n * bank.stride;
            }
            n -= bank.count;
        }
        panic!("no {}[{n}]", self.row().name)
    }
}

/// Queue enable in RXDCTL and TXDCTL.
pub(crate) const ENABLE: u32 = 1 << 25;
/// RDRXCTL: DMA initialization is done.
pub(crate) const DMAIDONE: u32 = 1 << 3;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::{BAR_BYTES, Reg, TABLE, canonical};

    #[test]
    fn no_two_registers_share_an_offset_and_all_are_words_within_the_bar() {
        let mut seen = HashSet::new();
        for row in TABLE {
            let count: u32 = row.banks.iter().map(|b| b.count).sum();
            for n in 0..count {
                let offset = row.reg.offset(n as usize);
                assert!(offset % 4 == 0 && offset < BAR_BYTES, "{}", row.name);
                assert!(seen.insert(offset), "{}[{n}] at {offset:#x} is taken", row.name);
                assert_eq!(canonical(offset), offset, "{}[{n}] is an alias of another", row.name);
            }
        }
    }

    #[test]
    fn rows_stand_in_the_order_of_their_names() {
        assert!(TABLE.iter().enumerate().all(|(i, r)| r.reg as usize == i));
        assert_eq!((Reg::Rdt.offset(0), Reg::Rdt.offset(64), Reg::Rdt.offset(127)), (0x1018, 0xd018, 0xdfd8));
        assert_eq!((Reg::Eitr.offset(24), Reg::Ral.offset(1)), (0x12300, 0xa208));
    }
}
