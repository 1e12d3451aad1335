// Package identity is who a program is towards its peer on the link, and whom it believes: its certificate and the CAs
// that it trusts, as files that others replace while it runs; the SPIFFE ID in a certificate; and the one TLS handshake
// that both programs use.
//
// It owns every rule about certificates. It must not know nodes, records or tokens (who may register is the edge's
// registry's business), and it watches nothing by itself: whoever sees that the files changed calls [Source.Reload].
// There is no way to switch a check off.
package identity

// ALPN names the framing inside TLS; both ends insist on it.
const ALPN = "iop/1"
