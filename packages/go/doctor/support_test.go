package doctor

import "crypto/x509"

type cert = x509.Certificate
