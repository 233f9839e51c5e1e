"""Families of methods: what the members of a family have in common, for lists and documentation."""

FAMILIES = {
    "risk": "ERM ERMPlusPlus",
    "trajectories": """
        AlignedMTL CAGrad ConFIG FAMO IMTLG MGDA MeasurementPOGM NashMTL OfficialPOGM PCGrad POGM PaperTextPOGM Reptile
        UPGrad
    """,
    "gradient agreement": "ANDMask Fish Fishr GGA IDGM IGA PGrad SANDMask",
    "flat minima": "SAGM SAM",
    "robust and invariant risks": "EQRM GroupDRO IBIRM IRM RDM TRM Transfer VREx",
    "feature matching": "CAD CORAL CausIRLCORAL CausIRLMMD CondCAD MMD",
    "adversarial features": "ADRMX CDANN DANN MADG URM",
    "regularised features": "CIRL IBERM RSC SD SagNet SelfReg",
    "meta-learning": "MLDG",
    "augmentation": "Augment MixStyle Mixup",
    "weight averaging": "EMA SMA SWAD",
    "fine-tuning": "LPFT MIRO WiSEFT",
    "adaptation at test time": "ARM ITTA MTL T3A TENT",
}
FAMILY = {name: family for family, names in FAMILIES.items() for name in names.split()}  # by method
