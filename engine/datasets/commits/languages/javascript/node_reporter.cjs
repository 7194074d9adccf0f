// Reporter of Node.js's own test runner: writes each test as a line of JSON to TRAINYARD_CASES.
'use strict'

const fs = require('node:fs')

module.exports = async function * reporter (source) {
  const out = fs.openSync(process.env.TRAINYARD_CASES, 'a')
  const titles = []
  for await (const { type, data } of source) {
    if (type === 'test:start') {
      titles.length = data.nesting
      titles.push(data.name)
    } else if (type === 'test:pass' || type === 'test:fail') {
      titles.length = data.nesting
      const title = [...titles, data.name].join(' ')
      titles.push(data.name)
      if (data.details.type === 'suite') continue
      const skipped = data.skip !== undefined || data.todo !== undefined
      const error = data.details.error
      const cause = error && error.failureType !== 'subtestsFailed' && (error.cause || error)
      fs.writeSync(out, JSON.stringify({
        file: process.env.TRAINYARD_FILE,
        title,
        outcome: skipped ? 'skipped' : type === 'test:pass' ? 'passed' : 'failed',
        seconds: (data.details.duration_ms || 0) / 1000,
        stack: cause ? String(cause.stack || cause.message || cause) : ''
      }) + '\n')
    }
    yield ''
  }
}
