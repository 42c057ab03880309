#!/bin/sh
# Generates the keys and certificates of this directory. They are public, for tests and measurements only.
set -eu
cd "$(dirname "$0")"
key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1"; }
sign() { # name, more flags: a certificate for localhost by the CA
    name=$1; shift
    key "$name.key"
    openssl req -new -key "$name.key" -subj "/CN=localhost" -out "$name.csr"
    printf 'subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\nauthorityKeyIdentifier=keyid\n' >"$name.ext"
    openssl x509 -req -in "$name.csr" -CA ca.pem -CAkey ca.key -extfile "$name.ext" -out "$name.pem" "$@"
    rm "$name.csr" "$name.ext"
}
key ca.key
openssl req -x509 -new -key ca.key -subj "/CN=saltcellar tests" -days 36500 -out ca.pem \
    -addext 'basicConstraints=critical,CA:TRUE' -addext 'keyUsage=critical,keyCertSign,cRLSign'
sign server -days 36000
sign renewed -days 36000
# `x509` of older releases of openssl cannot set the dates; `ca` can.
mkdir ca.tmp; : >ca.tmp/index; echo 01 >ca.tmp/serial
cat >ca.tmp/conf <<'END'
[ca]
default_ca=one
[one]
new_certs_dir=ca.tmp
database=ca.tmp/index
serial=ca.tmp/serial
default_md=sha256
policy=any
[any]
commonName=supplied
[leaf]
subjectAltName=DNS:localhost,IP:127.0.0.1
basicConstraints=CA:FALSE
END
key expired.key
openssl req -new -key expired.key -subj "/CN=localhost" -out ca.tmp/csr
openssl ca -batch -notext -config ca.tmp/conf -extensions leaf -cert ca.pem -keyfile ca.key -in ca.tmp/csr -out expired.pem \
    -startdate 20200101000000Z -enddate 20200201000000Z
rm -r ca.tmp ca.key
# Minions' keys as Salt writes them: PKCS #1 and PKCS #8, 2048 and 4096 bits.
openssl genrsa -traditional -out minion-a.pem 2048
openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:4096 -out minion-b.pem
for name in minion-a minion-b; do openssl rsa -in $name.pem -pubout -out $name.pub; done
