// Reporter of mocha: writes each test as a line of JSON to TRAINYARD_CASES.
'use strict'

const fs = require('node:fs')
const path = require('node:path')

function random (seed) {
  let state = seed >>> 0
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0
    return state / 2 ** 32
  }
}

function shuffle (suite, next) {
  for (let last = suite.tests.length - 1; last > 0; last--) {
    const other = Math.floor(next() * (last + 1))
    ;[suite.tests[last], suite.tests[other]] = [suite.tests[other], suite.tests[last]]
  }
  for (const inner of suite.suites) shuffle(inner, next)
}

function fileOf (test) {
  for (let at = test; at; at = at.parent) {
    if (at.file) return path.relative(process.cwd(), at.file)
  }
  return ''
}

module.exports = function Reporter (runner) {
  const out = fs.openSync(process.env.TRAINYARD_CASES, 'a')
  const order = parseInt(process.env.TRAINYARD_ORDER, 10)
  if (order) shuffle(runner.suite, random(order))
  function record (test, outcome, error) {
    const stack = error ? String(error.stack || error.message || error) : ''
    const titles = []
    for (let at = test; at && at.title; at = at.parent) titles.unshift(at.title)
    fs.writeSync(out, JSON.stringify({
      file: fileOf(test), title: titles.join(' '), outcome, seconds: (test.duration || 0) / 1000, stack
    }) + '\n')
  }
  runner.on('pass', (test) => record(test, 'passed'))
  runner.on('fail', (test, error) => record(test, 'failed', error))
  runner.on('pending', (test) => record(test, 'skipped'))
}
