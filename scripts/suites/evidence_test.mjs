// Sigstore's verifier in JavaScript on bundles that turn verify --format sigstore has printed: NAME.sigstore in this folder,
// with the keys node.pem and caller.pem. Prints "NAME VERSION" of each package.
import assert from 'node:assert/strict';
import {readFileSync} from 'node:fs';
import {createRequire} from 'node:module';
import {createPublicKey} from 'node:crypto';

const modules = process.argv[2];
const require = createRequire(modules + '/');
const {bundleFromJSON} = require('@sigstore/bundle');
const {toSignedEntity, toTrustMaterial, Verifier} = require('@sigstore/verify');

const read = (name) => readFileSync(name, 'utf8');
const key = (role) => createPublicKey(read(`${role}.pem`));
// A node has no certificate, and its signatures are in no log.
const without = {tlogThreshold: 0, ctlogThreshold: 0, tsaThreshold: 0};

function verify(json, publicKey) {
	const root = {certificateAuthorities: [], timestampAuthorities: [], tlogs: [], ctlogs: []};
	const trust = toTrustMaterial(root, () => ({publicKey, validFor: () => true}));
	new Verifier(trust, without).verify(toSignedEntity(bundleFromJSON(json)));
}

for (const name of ['node', 'both']) {
	const bundle = JSON.parse(read(`${name}.sigstore`));
	verify(bundle, key('node'));
	assert.throws(() => verify(bundle, key('caller')), /signature/);
	const payload = JSON.parse(Buffer.from(bundle.dsseEnvelope.payload, 'base64'));
	payload.predicate.turn.number = 99;
	bundle.dsseEnvelope.payload = Buffer.from(JSON.stringify(payload)).toString('base64');
	assert.throws(() => verify(bundle, key('node')), /signature/);
}
for (const name of ['@sigstore/bundle', '@sigstore/verify']) {
	console.log(name, JSON.parse(read(`${modules}/${name}/package.json`)).version);
}
