// Runs test files of a JavaScript package in a sandbox and writes a JUnit report.
//
//     node driver.cjs REPORT RUNNER [OPTION…] -- FILE…
//
// RUNNER is mocha, jest, ava, tape or node. A case's classname is its file, its name the titles of its suites and
// its own. Each failure is printed as `FILE:LINE: MESSAGE`. With TRAINYARD_ORDER mocha shuffles the tests of
// each suite; files run in the order in which they are given.
'use strict'

const { spawnSync } = require('node:child_process')
const fs = require('node:fs')
const os = require('node:os')
const path = require('node:path')

const MODULES = path.dirname(__dirname)
const MAX_OUTPUT = 32 << 20

function program (name, fallback) {
  const folder = path.join(MODULES, name)
  const { bin } = JSON.parse(fs.readFileSync(path.join(folder, 'package.json'), 'utf8'))
  return path.join(folder, typeof bin === 'string' ? bin : (bin && bin[name]) || fallback)
}

function major (name) {
  return parseInt(JSON.parse(fs.readFileSync(path.join(MODULES, name, 'package.json'), 'utf8')).version, 10)
}

function start (argv, output, environment) {
  const stdio = ['ignore', output, 'inherit']
  const done = spawnSync(process.execPath, argv, {
    stdio, maxBuffer: MAX_OUTPUT, env: { ...process.env, ...environment }
  })
  return { text: done.stdout ? done.stdout.toString() : '', code: done.status === null ? 1 : done.status }
}

// Each runner returns its cases and an exit code.

function mocha (options, files, scratch) {
  const cases = path.join(scratch, 'cases')
  const exit = major('mocha') >= 4 ? ['--exit'] : []
  const argv = [program('mocha', 'bin/mocha'), ...options, ...exit, '--reporter', reporter('mocha'), ...files]
  const { code } = start(argv, 'inherit', { TRAINYARD_CASES: cases })
  return { code, cases: lines(cases) }
}

function node (options, files, scratch) {
  const cases = path.join(scratch, 'cases')
  let code = 0
  for (const file of files) {
    const argv = [...options, `--test-reporter=${reporter('node')}`, '--test-reporter-destination=stdout', file]
    code = start(argv, 'inherit', { TRAINYARD_CASES: cases, TRAINYARD_FILE: file }).code || code
  }
  return { code, cases: lines(cases) }
}

function jest (options, files, scratch) {
  const report = path.join(scratch, 'report.json')
  const argv = [program('jest', 'bin/jest.js'), '--ci', '--runInBand', '--coverage=false', '--json',
    '--outputFile', report, '--cacheDirectory', path.join(os.tmpdir(), 'jest-cache'), '--runTestsByPath', ...files]
  const { code } = start(argv, 'ignore', {})
  const { testResults } = JSON.parse(fs.readFileSync(report, 'utf8'))
  const outcomes = { passed: 'passed', failed: 'failed' }
  const cases = testResults.flatMap(({ name, assertionResults, message }) => {
    if (!assertionResults.length && message) console.log(message)
    return assertionResults.map((result) => ({
      file: path.relative(process.cwd(), name),
      title: [...result.ancestorTitles, result.title].join(' '),
      outcome: outcomes[result.status] || 'skipped',
      seconds: (result.duration || 0) / 1000,
      stack: String((result.failureMessages || [])[0] || '')
    }))
  })
  return { code, cases }
}

function ava (options, files) {
  return perFile(files, (file) => [program('ava', 'cli.js'), '--tap', file], points)
}

function tape (options, files) {
  return perFile(files, (file) => [program('tape', 'bin/tape'), ...options, file], groups)
}

function perFile (files, argv, read) {
  let code = 0
  const cases = []
  for (const file of files) {
    const done = start(argv(file), 'pipe', {})
    console.log(done.text)
    code = done.code || code
    cases.push(...read(file, done.text))
  }
  return { code, cases }
}

// TAP of ava: a point is a test.
function points (file, text) {
  const cases = []
  for (const line of text.split('\n')) {
    const point = /^(not )?ok \d+(?: - (.*?))?(?: # (SKIP|TODO)\b.*)?$/i.exec(line)
    if (point) {
      const outcome = point[3] ? 'skipped' : point[1] ? 'failed' : 'passed'
      cases.push({ file, title: point[2] || '', outcome, seconds: 0, stack: '' })
    } else if (cases.length && /^ +\S/.test(line)) {
      cases[cases.length - 1].stack += line + '\n'
    }
  }
  for (const test of cases) test.stack = diagnostic(test.stack)
  return cases
}

// TAP of tape: a point is an assertion, a comment the title of a test. A process that crashed prints no plan:
// its last test did not end.
function groups (file, text) {
  const tests = new Map()
  let title = ''
  let failed = null
  for (const line of text.split('\n')) {
    const point = /^(not )?ok \d+(.*)$/.exec(line)
    if (line.startsWith('# ')) {
      title = line.slice(2)
      failed = null
    } else if (point && !/ # (SKIP|TODO)\b/.test(line)) {
      const test = tests.get(title) || { file, title, outcome: 'passed', seconds: 0, stack: '' }
      tests.set(title, test)
      failed = point[1] && test.outcome === 'passed' ? test : null
      if (failed) Object.assign(failed, { outcome: 'failed', stack: `AssertionError: ${point[2].trim()}\n` })
    } else if (failed) {
      failed.stack += line + '\n'
    }
  }
  if (title && !/^1\.\.\d+$/m.test(text)) {
    const last = tests.get(title)
    if (!last || last.outcome === 'passed') {
      tests.set(title, { file, title, outcome: 'failed', seconds: 0, stack: 'Error: the process ended early\n' })
    }
  }
  for (const test of tests.values()) test.stack = compared(test.stack)
  return [...tests.values()]
}

function compared (text) {
  const values = /^( +)expected: *(?:\|-\n)?([^]*?)\n\1actual: *(?:\|-\n)?([^]*?)\n\1\w+:/m.exec(text)
  return values ? text.replace('\n', () => `: ${values[3]} instead of ${values[2]}\n`) : text
}

// Puts the message of ava and the compared values before its diagnostic.
function diagnostic (text) {
  const [name, message] = ['name', 'message'].map((key) => new RegExp(`^ {4}${key}: (.*)$`, 'm').exec(text))
  const values = /^ {4}(?:values|details):\n([^]*?)^ {4}(?:message|at):/m.exec(text)
  const parts = [message && message[1].replace(/^''$/, ''), values && values[1].replace(/^ +'[^']*': .*$/m, '')]
  const joined = parts.filter(Boolean).join(': ').replace(/\s+/g, ' ')
  return joined ? `${name ? name[1] : 'Error'}: ${joined}\n  ---\n${text}` : text
}

function reporter (name) {
  return path.join(__dirname, `${name}_reporter.cjs`)
}

function lines (file) {
  if (!fs.existsSync(file)) return []
  return fs.readFileSync(file, 'utf8').split('\n').filter(Boolean).map((line) => JSON.parse(line))
}

function message (stack) {
  const text = stack.split(/\n +(?:at |---)/)[0].replace(/\x1b\[[0-9;]*m/g, '').replace(/\s+/g, ' ').trim()
  return text.slice(0, 300) || 'Error'
}

function place ({ file, stack }) {
  for (const [, name, line] of stack.matchAll(/(?:file:\/\/)?([^\s():'"]+\.[cm]?js):(\d+)/g)) {
    const own = path.relative('', name)
    if (!own.startsWith('..') && !own.includes('node_modules')) return `${own}:${line}`
  }
  return `${file}:0`
}

function escaped (text) {
  return String(text).replace(/[^\t\n\r\x20-\ud7ff\ue000-\ufffd\u{10000}-\u{10ffff}]/gu, '\ufffd')
    .replace(/[<>&"\t\n\r]/g, (character) => `&#${character.charCodeAt(0)};`)
}

function junit (cases) {
  const elements = cases.map((test) => {
    const child = test.outcome === 'failed' ? `<failure message="${escaped(message(test.stack))}"/>`
      : test.outcome === 'skipped' ? '<skipped/>' : ''
    const head = `classname="${escaped(test.file)}" name="${escaped(test.title)}"`
    return `<testcase ${head} time="${Number(test.seconds) || 0}">${child}</testcase>`
  })
  return `<testsuites><testsuite>${elements.join('\n')}</testsuite></testsuites>\n`
}

function main ([report, runner, ...rest]) {
  const end = rest.indexOf('--')
  const scratch = fs.mkdtempSync(path.join(os.tmpdir(), 'tests-'))
  const { code, cases } = { mocha, jest, ava, tape, node }[runner](rest.slice(0, end), rest.slice(end + 1), scratch)
  for (const test of cases) {
    if (test.outcome === 'failed' && test.stack) console.log(`${place(test)}: ${message(test.stack)}`)
  }
  fs.mkdirSync(path.dirname(report), { recursive: true })
  fs.writeFileSync(report, junit(cases))
  process.exitCode = code
}

main(process.argv.slice(2))
