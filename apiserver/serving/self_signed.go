package serving

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"
)

const selfSignedLife = 365 * 24 * time.Hour

// selfSigned returns, in PEM, a serving certificate for hosts, followed by the certificate of the authority that signed
// it, and the key of the serving certificate. The key of the authority is discarded.
func selfSigned(hosts []string, now time.Time) (certPEM, keyPEM []byte, err error) {
	if len(hosts) == 0 {
		return nil, nil, errors.New("no host names or addresses for the certificate")
	}
	authorityKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	authority := template(fmt.Sprintf("%s-ca@%d", hosts[0], now.Unix()), now)
	authority.IsCA, authority.BasicConstraintsValid = true, true
	authority.KeyUsage |= x509.KeyUsageCertSign
	leaf := template(fmt.Sprintf("%s@%d", hosts[0], now.Unix()), now)
	leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for _, host := range hosts {
		if address := net.ParseIP(host); address != nil {
			leaf.IPAddresses = append(leaf.IPAddresses, address)
		} else {
			leaf.DNSNames = append(leaf.DNSNames, host)
		}
	}
	for _, c := range []struct {
		certificate *x509.Certificate
		public      *ecdsa.PublicKey
	}{{leaf, &key.PublicKey}, {authority, &authorityKey.PublicKey}} {
		der, err := x509.CreateCertificate(rand.Reader, c.certificate, authority, c.public, authorityKey)
		if err != nil {
			return nil, nil, err
		}
		certPEM = append(certPEM, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	return certPEM, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

// template returns the common fields of a certificate. It is valid from one hour before now, because clocks differ.
func template(name string, now time.Time) *x509.Certificate {
	// rand.Reader never fails.
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(selfSignedLife), KeyUsage: x509.KeyUsageDigitalSignature,
	}
}
