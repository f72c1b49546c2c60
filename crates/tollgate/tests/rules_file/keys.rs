//! Public keys for these tests only.

/// A PEM whose lines end with `$end`.
macro_rules! pem {
    ($label:literal, $end:literal, $($line:literal),+) => {
        concat!("-----BEGIN ", $label, "-----", $end, $($line, $end,)+ "-----END ", $label, "-----", $end)
    };
}

/// A key on the curve P-256, as a quoted text of YAML.
macro_rules! p256 {
    () => {
        concat!("\"", p256!("\\n"), "\"")
    };
    ($end:literal) => {
        pem!(
            "PUBLIC KEY",
            $end,
            "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAESm9x/UBCIVhyICC9zvZEkS6zyX5h",
            "6Jt8ESi/0ILGZyBTM/F6CxHZF0pGkiU+HW8NIVtiEMXJHIDKtPLFi12rzQ=="
        )
    };
}

/// An RSA key of 2048 bits, as a quoted text of YAML.
macro_rules! rsa {
    () => {
        concat!("\"", rsa!("\\n"), "\"")
    };
    ($end:literal) => {
        pem!(
            "PUBLIC KEY",
            $end,
            "MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAtZ+6nvZy+4+cjQV0tL+h",
            "wtgFHNzIbR7aO+wZwHsBAFcgRaa/uWCzUlly7tSqp7+CZIOck/K0O5EUih20CXuF",
            "7xfQgOZfSI9n1UyPDYuXXDKMEWho22UO6pDcFMxlVF0vOTpyRljuFs7ZLybcJc8z",
            "LWKM2L0ws36DBlSSQZGrQ6EvCyp3JThLv+gdkCz1pQLcoCIH/qYTSV+RAvxmvpkG",
            "8WlUQpJVAAbfRSfZL795WGrLlMeyYAy9NgTA2zfJhAze9DYU5Y9FkgsvRjBJuQ5e",
            "QBPpi+fyUgpPWdHS9WRod739pYKsr9SDOobfH5n6v4JQruLWqQwz5mBMEgjHD3ev",
            "PwIDAQAB"
        )
    };
}

/// The same key in PKCS #1, as a quoted text of YAML with the line ends of Windows.
macro_rules! rsa_pkcs1 {
    () => {
        concat!(
            "\"\\n",
            pem!(
                "RSA PUBLIC KEY",
                "\\r\\n",
                "MIIBCgKCAQEAtZ+6nvZy+4+cjQV0tL+hwtgFHNzIbR7aO+wZwHsBAFcgRaa/uWCz",
                "Ully7tSqp7+CZIOck/K0O5EUih20CXuF7xfQgOZfSI9n1UyPDYuXXDKMEWho22UO",
                "6pDcFMxlVF0vOTpyRljuFs7ZLybcJc8zLWKM2L0ws36DBlSSQZGrQ6EvCyp3JThL",
                "v+gdkCz1pQLcoCIH/qYTSV+RAvxmvpkG8WlUQpJVAAbfRSfZL795WGrLlMeyYAy9",
                "NgTA2zfJhAze9DYU5Y9FkgsvRjBJuQ5eQBPpi+fyUgpPWdHS9WRod739pYKsr9SD",
                "OobfH5n6v4JQruLWqQwz5mBMEgjHD3evPwIDAQAB"
            ),
            "\""
        )
    };
}
