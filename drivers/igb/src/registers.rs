//! The registers that the driver uses, as one table (82576 data sheet, chapter 8; I350 data sheet, chapter 8).

pub use intel_nic::registers::{Access, BAR_BYTES, Base, Bus, Mmio, Register, Registers};

// Queues 0 to 3 have further addresses from 0x2800 and 0x3800 on, for drivers of older devices. These here are those that all
// queues have.
intel_nic::registers! {
    plain CTRL "CTRL" 0x00000 + 4 x 1 ReadWrite "8.2"
    plain STATUS "STATUS" 0x00008 + 4 x 1 ReadOnly "8.2"
    plain CTRL_EXT "CTRL_EXT" 0x00018 + 4 x 1 ReadWrite "8.2"
    plain MDIC "MDIC" 0x00020 + 4 x 1 ReadWrite "8.2"
    plain VET "VET" 0x00038 + 4 x 1 ReadWrite "8.2"
    plain LEDCTL "LEDCTL" 0x00e00 + 4 x 1 ReadWrite "8.2"
    // The I350 alone has it: the power of the PHY.
    plain PHPM "PHPM" 0x00e14 + 4 x 1 ReadWrite "8.2"

    plain EECD "EECD" 0x00010 + 4 x 1 ReadOnly "8.4"
    plain EEMNGCTL "EEMNGCTL" 0x01010 + 4 x 1 ReadOnly "8.4"

    plain SWSM "SWSM" 0x05b50 + 4 x 1 ReadWrite "8.7"
    plain SW_FW_SYNC "SW_FW_SYNC" 0x05b5c + 4 x 1 ReadWrite "8.7"

    plain ICR "ICR" 0x000c0 + 4 x 1 ReadClear "8.8"
    plain IMC "IMC" 0x000d8 + 4 x 1 WriteOnly "8.8"
    plain EIMC "EIMC" 0x01528 + 4 x 1 WriteOnly "8.8"
    plain EICR "EICR" 0x01580 + 4 x 1 ReadClear "8.8"

    plain RCTL "RCTL" 0x00100 + 4 x 1 ReadWrite "8.10"
    base RDBAL "RDBAL" 0x0c000 + 0x40 x 8 ReadWrite "8.10"
    base RDBAH "RDBAH" 0x0c004 + 0x40 x 8 ReadWrite "8.10"
    plain RDLEN "RDLEN" 0x0c008 + 0x40 x 8 ReadWrite "8.10"
    plain SRRCTL "SRRCTL" 0x0c00c + 0x40 x 8 ReadWrite "8.10"
    plain RDH "RDH" 0x0c010 + 0x40 x 8 ReadWrite "8.10"
    plain RDT "RDT" 0x0c018 + 0x40 x 8 ReadWrite "8.10"
    plain RXDCTL "RXDCTL" 0x0c028 + 0x40 x 8 ReadWrite "8.10"
    plain RXCSUM "RXCSUM" 0x05000 + 4 x 1 ReadWrite "8.10"
    plain RLPML "RLPML" 0x05004 + 4 x 1 ReadWrite "8.10"
    plain MTA "MTA" 0x05200 + 4 x 128 ReadWrite "8.10"
    plain RAL "RAL" 0x05400 + 8 x 16 ReadWrite "8.10"
    plain RAH "RAH" 0x05404 + 8 x 16 ReadWrite "8.10"
    // Entries from 16 on: the 82576 has 8 of them, the I350 has 16.
    plain RAL2 "RAL" 0x054e0 + 8 x 16 ReadWrite "8.10"
    plain RAH2 "RAH" 0x054e4 + 8 x 16 ReadWrite "8.10"
    plain VFTA "VFTA" 0x05600 + 4 x 128 ReadWrite "8.10"
    plain MRQC "MRQC" 0x05818 + 4 x 1 ReadWrite "8.10"
    plain UTA "UTA" 0x0a000 + 4 x 128 WriteOnly "8.10"

    plain TCTL "TCTL" 0x00400 + 4 x 1 ReadWrite "8.12"
    base TDBAL "TDBAL" 0x0e000 + 0x40 x 8 ReadWrite "8.12"
    base TDBAH "TDBAH" 0x0e004 + 0x40 x 8 ReadWrite "8.12"
    plain TDLEN "TDLEN" 0x0e008 + 0x40 x 8 ReadWrite "8.12"
    plain TDH "TDH" 0x0e010 + 0x40 x 8 ReadWrite "8.12"
    plain TDT "TDT" 0x0e018 + 0x40 x 8 ReadWrite "8.12"
    plain TXDCTL "TXDCTL" 0x0e028 + 0x40 x 8 ReadWrite "8.12"

    plain CRCERRS "CRCERRS" 0x04000 + 4 x 1 ReadClear "8.19"
    plain MPC "MPC" 0x04010 + 4 x 1 ReadClear "8.19"
    plain GPRC "GPRC" 0x04074 + 4 x 1 ReadClear "8.19"
    plain BPRC "BPRC" 0x04078 + 4 x 1 ReadClear "8.19"
    plain MPRC "MPRC" 0x0407c + 4 x 1 ReadClear "8.19"
    plain GPTC "GPTC" 0x04080 + 4 x 1 ReadClear "8.19"
    plain GORCL "GORCL" 0x04088 + 4 x 1 ReadClear "8.19"
    plain GORCH "GORCH" 0x0408c + 4 x 1 ReadClear "8.19"
    plain GOTCL "GOTCL" 0x04090 + 4 x 1 ReadClear "8.19"
    plain GOTCH "GOTCH" 0x04094 + 4 x 1 ReadClear "8.19"
    plain RNBC "RNBC" 0x040a0 + 4 x 1 ReadClear "8.19"
    plain RUC "RUC" 0x040a4 + 4 x 1 ReadClear "8.19"
    plain RFC "RFC" 0x040a8 + 4 x 1 ReadClear "8.19"
    plain ROC "ROC" 0x040ac + 4 x 1 ReadClear "8.19"
    plain RJC "RJC" 0x040b0 + 4 x 1 ReadClear "8.19"
    plain TPR "TPR" 0x040d0 + 4 x 1 ReadClear "8.19"
}
